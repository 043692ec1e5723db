// Random meshes and placements for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::layout {

class RandomLayouts {
 public:
  explicit RandomLayouts(uint32_t seed) : engine_(seed) {}

  // In [low, high].
  int64_t number(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }

  Mesh mesh(int64_t most_axes, int64_t most_size) {
    std::vector<Axis> axes;
    for (int64_t i = 0, n = number(0, most_axes); i < n; ++i) {
      axes.push_back({std::string(1, static_cast<char>('a' + i)), number(1, most_size)});
    }
    return Mesh(axes);
  }

  std::vector<int64_t> permutation(int64_t count) {
    std::vector<int64_t> result(count);
    for (int64_t i = 0; i < count; ++i) {
      result[i] = i;
    }
    std::shuffle(result.begin(), result.end(), engine_);
    return result;
  }

  // Cuts of dims below `ndim` with random units and consistent orders, and replicas; Partial and On too where
  // `with_partial`.
  Placements placements(const Mesh& mesh, int64_t ndim, bool with_partial = false) {
    const ReduceOp op = static_cast<ReduceOp>(number(0, 4));
    Placements result;
    std::map<int64_t, std::vector<int64_t>> axes_of;
    for (int64_t a = 0; a < mesh.ndim(); ++a) {
      const int64_t kind = number(0, with_partial ? 4 : 3);
      if (kind == 4) {
        result.push_back(On(number(0, mesh.axis(a).size - 1)));
      } else if (kind == 0 || ndim == 0) {
        result.push_back(Replicate());
      } else if (kind == 1 && with_partial) {
        result.push_back(Partial(op));
      } else {
        const int64_t dim = number(0, ndim - 1);
        axes_of[dim].push_back(a);
        result.push_back(Shard(dim, {.unit = number(0, 1) == 0 ? 1 : number(1, 5)}));
      }
    }
    for (const auto& [dim, axes] : axes_of) {
      const auto order = permutation(static_cast<int64_t>(axes.size()));
      const bool is_explicit = number(0, 1) == 0;
      for (size_t i = 0; i < axes.size() && is_explicit; ++i) {
        result[axes[i]].order = static_cast<int8_t>(order[i]);
      }
    }
    return result;
  }

  // Sizes of so many parts that add up to `total`, some of them 0.
  std::vector<int64_t> parts(int64_t total, int64_t count) {
    std::vector<int64_t> ends(count, total);
    std::generate(ends.begin(), ends.end() - 1, [&] { return number(0, total); });
    std::sort(ends.begin(), ends.end());
    std::adjacent_difference(ends.begin(), ends.end(), ends.begin());
    return ends;
  }

  // Some of the cuts of a tensor of these sizes at given places instead.
  Placements with_ragged_cuts(const Mesh& mesh, Placements placements, const std::vector<int64_t>& sizes) {
    const std::vector<int64_t> blocks = blocks_of_dims(placements, static_cast<int64_t>(sizes.size()));
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t run = sizes[d] / blocks[d];
      for (int64_t axis : axes_of_dim(mesh, placements, static_cast<int64_t>(d))) {
        const int64_t count = mesh.axis(axis).size;
        if (number(0, 1) == 0) {
          placements[axis].places = Places::of_sizes(parts(run, count));
        }
        run = placements[axis].cut(run, count).most();
      }
    }
    return placements;
  }

  // Dims 0 to `last` of a tensor of these sizes taken together and dealt out to one axis or more, some ranks none.
  Placements spanning_cuts(const Mesh& mesh, const std::vector<int64_t>& sizes, int64_t last) {
    Placements placements(mesh.ndim());
    int64_t run = std::accumulate(sizes.begin(), sizes.begin() + last + 1, int64_t{1}, std::multiplies<>());
    const int64_t first = number(0, mesh.ndim() - 1);
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      if (axis == first || (axis > first && number(0, 1) == 0)) {
        const int64_t count = mesh.axis(axis).size;
        Placement cut = Shard(last, {.unit = number(1, 3)});
        cut.places = number(0, 3) == 0 ? cut.places : Places::of_sizes(parts(run, count));
        placements[axis] = spanning(cut);
        run = cut.cut(run, count).most();
      }
    }
    return placements;
  }

  std::vector<int64_t> sizes(int64_t most_dims, int64_t most_size) {
    std::vector<int64_t> result(number(0, most_dims));
    for (int64_t& size : result) {
      size = number(0, most_size);
    }
    return result;
  }

 private:
  std::mt19937 engine_;
};

}  // namespace tessera::layout
