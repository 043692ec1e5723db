// Random catalogues for tests.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tessera/catalogue/catalogue.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::catalogue {

class RandomCatalogues {
 public:
  explicit RandomCatalogues(uint32_t seed) : random(seed) {}

  // Of up to three axes and so many ranks on each, over any ranks below 70.
  layout::Mesh mesh(int64_t most_size = 4) {
    const layout::Mesh plain = random.mesh(3, most_size);
    std::vector<int64_t> ranks = random.permutation(70);
    if (random.number(0, 1) == 0) {
      std::sort(ranks.begin(), ranks.begin() + plain.size());
    }
    ranks.resize(plain.size());
    return {plain.axes(), ranks};
  }

  // Every dim divides into 2 and into 3 blocks.
  std::vector<int64_t> sizes() {
    std::vector<int64_t> sizes = random.sizes(3, 2);
    for (int64_t& size : sizes) {
      size *= 6;
    }
    return sizes;
  }

  // Cuts with units and orders, at given places or not, in blocks or not, several of one dim, replicas, On.
  layout::Spec spec(const layout::Mesh& mesh, const std::vector<int64_t>& sizes,
                    c10::ScalarType dtype = c10::ScalarType::Double) {
    layout::Placements placements = random.placements(mesh, static_cast<int64_t>(sizes.size()), true);
    std::map<int64_t, int64_t> blocks;
    for (layout::Placement& placement : placements) {
      if (placement.is_partial()) {
        placement = layout::Replicate();
      } else if (placement.is_shard()) {
        placement.blocks = static_cast<uint8_t>(blocks.emplace(placement.dim, random.number(1, 3)).first->second);
      }
    }
    placements = random.number(0, 1) == 0 ? random.with_ragged_cuts(mesh, std::move(placements), sizes) : placements;
    return layout::Spec::contiguous(mesh, placements, sizes, dtype);
  }

  // `count` entries over two meshes, some with aliases.
  Catalogue catalogue(int64_t count) {
    const layout::Mesh meshes[] = {mesh(), mesh()};
    const c10::ScalarType dtypes[] = {c10::ScalarType::Float, c10::ScalarType::BFloat16, c10::ScalarType::Long,
                                      c10::ScalarType::Bool};
    std::vector<Entry> entries;
    for (int64_t i = 0; i < count; ++i) {
      Entry entry{"t" + std::to_string(i), {}, static_cast<Role>(random.number(0, 3)), {}};
      for (int64_t a = 0, n = std::max<int64_t>(random.number(-3, 2), 0); a < n; ++a) {
        entry.aliases.push_back(entry.name + ".again" + std::to_string(a));
      }
      entry.spec = spec(meshes[random.number(0, 1)], sizes(), dtypes[random.number(0, 3)]);
      entries.push_back(std::move(entry));
    }
    std::shuffle(entries.begin(), entries.end(), std::mt19937(static_cast<uint32_t>(random.number(0, 1 << 30))));
    return Catalogue(std::move(entries));
  }

  // The same tensors, otherwise placed on other meshes.
  Catalogue placed_anew(const Catalogue& catalogue) {
    const layout::Mesh meshes[] = {mesh(), mesh()};
    std::vector<Entry> entries = catalogue.entries();
    for (Entry& entry : entries) {
      entry.spec = spec(meshes[random.number(0, 1)], entry.spec->sizes, entry.spec->dtype);
    }
    return Catalogue(std::move(entries));
  }

  layout::RandomLayouts random;
};

}  // namespace tessera::catalogue
