#include "tessera/dtensor/front/chunks.h"

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/state/state.h"

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
  const at::Tensor local = part_outside_program(tensor);
  if (spec->numel() == 0) {
    return {{std::vector<int64_t>(spec->sizes.size()), local.new_empty(spec->sizes)}};
  }
  if (local.numel() == 0) {
    return {};
  }
  std::vector<Chunk> chunks = {{{}, local}};
  const auto runs = spec.local_runs(*coord);
  for (int64_t dim = 0; dim < spec->ndim(); ++dim) {
    chunks = with_dim(chunks, dim, runs[static_cast<size_t>(dim)]);
  }
  return chunks;
}

}  // namespace tessera::dtensor
