#include "tessera/dtensor/front/chunks.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/move/pieces.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/reshard/holdings.h"

namespace tessera::dtensor {

namespace {

// Every chunk of `done` with each of the runs that the part has of the next dim, one behind the other.
std::vector<Chunk> with_dim(const std::vector<Chunk>& done, int64_t dim, const std::vector<layout::Range>& runs) {
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : done) {
    int64_t at = 0;
    for (const layout::Range& run : runs) {
      chunks.push_back({chunk.offsets, chunk.part.narrow(dim, at, run.size())});
      chunks.back().offsets.push_back(run.begin);
      at += run.size();
    }
  }
  return chunks;
}

// Chunks of dims that a cut spans, of which the last has where the run begins, as slices of these dims.
std::vector<Chunk> in_dims(const std::vector<Chunk>& runs, const Spec& spec) {
  std::vector<Chunk> chunks;
  const auto last = static_cast<size_t>(layout::last_spanned_dim(spec->placements));
  const reshard::Holdings holdings(spec);
  reshard::Box together;
  for (size_t d = 0; d <= last; ++d) {
    together.push_back({0, spec->sizes[d]});
  }
  for (const Chunk& run : runs) {
    int64_t at = 0;
    const int64_t begin = run.offsets[last], size = run.part.size(static_cast<int64_t>(last));
    for (reshard::Box& box : reshard::boxes_of_range(together, begin, begin + size)) {
      const int64_t elements = reshard::numel(box);
      std::vector<int64_t> sizes = sizes_of(box);
      for (size_t d = last + 1; d < spec->sizes.size(); ++d) {
        sizes.push_back(run.part.size(static_cast<int64_t>(d)));
        box.push_back({run.offsets[d], run.offsets[d] + sizes.back()});
      }
      const at::Tensor part = run.part.narrow(static_cast<int64_t>(last), at, elements).view(sizes);
      for (const reshard::Box& cell : holdings.cells_in({box})) {
        Chunk chunk{{}, narrowed(part, slices_of(box, cell))};
        std::transform(cell.begin(), cell.end(), std::back_inserter(chunk.offsets),
                       [](const layout::Range& range) { return range.begin; });
        chunks.push_back(std::move(chunk));
      }
      at += elements;
    }
  }
  return chunks;
}

}  // namespace

std::vector<Chunk> chunks_of(const at::Tensor& tensor) {
  const Spec spec = spec_of(tensor);
  comm::RankContext& ctx = RankState::require().ctx;
  TESSERA_CHECK(!spec->has_partial, "[chunks] of a tensor of which ranks hold terms, ", spec.str(), " (rank ", ctx.rank,
                "); accepted: one whose terms were added, x.redistribute(...) to Replicate or Shard");
  const std::optional<layout::Coord> coord = spec->mesh.coord_of(ctx.rank);
  if (!coord || !spec->holds(*coord)) {
    return {};
  }
  return chunks_of_part(part_outside_program(tensor), spec, *coord);
}

std::vector<Chunk> chunks_of_part(const at::Tensor& local, const layout::Spec& spec, const layout::Coord& coord) {
  if (spec->numel() == 0) {
    return {{std::vector<int64_t>(spec->sizes.size()), local.new_empty(spec->sizes)}};
  }
  if (local.numel() == 0) {
    return {};
  }
  std::vector<Chunk> chunks = {{{}, local}};
  const auto runs = spec.local_runs(coord);
  for (int64_t dim = 0; dim < spec->ndim(); ++dim) {
    chunks = with_dim(chunks, dim, runs[static_cast<size_t>(dim)]);
  }
  return spec->is_spanned() ? in_dims(chunks, spec) : chunks;
}

}  // namespace tessera::dtensor
