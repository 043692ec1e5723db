#include "tessera/layout/placement.h"

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

namespace tessera::layout {

Placement Replicate() { return {}; }

Placement Shard(int64_t dim, ShardOptions options) {
  TESSERA_CHECK(dim >= 0 && dim <= std::numeric_limits<int32_t>::max(), "[layout] Shard(", dim,
                "): the dim must be 0 or more; count negative dims from the front first");
  TESSERA_CHECK(options.unit >= 1, "[layout] Shard(", dim, ") with unit ", options.unit,
                ": the unit must be at least 1");
  TESSERA_CHECK(options.order >= -1 && options.order <= 127, "[layout] Shard(", dim, ") with order ", options.order,
                ": the order must be -1 (mesh order) or 0 to 127");
  TESSERA_CHECK(options.blocks >= 1 && options.blocks <= std::numeric_limits<uint8_t>::max(), "[layout] Shard(", dim,
                ") in ", options.blocks, " blocks; accepted: 1 to 255");
  Placement result;
  result.kind = Placement::Kind::kShard;
  result.blocks = static_cast<uint8_t>(options.blocks);
  result.dim = static_cast<int32_t>(dim);
  result.order = static_cast<int8_t>(options.order);
  result.unit = options.unit;
  return result;
}

Placement InterleavedShard(int64_t dim, int64_t blocks, ShardOptions options) {
  options.blocks = blocks;
  return Shard(dim, options);
}

Placement Partial(ReduceOp op) {
  Placement result;
  result.kind = Placement::Kind::kPartial;
  result.op = op;
  return result;
}

uint64_t Placement::hash() const {
  const uint64_t small = static_cast<uint64_t>(kind) | static_cast<uint64_t>(op) << 8 |
                         static_cast<uint64_t>(static_cast<uint8_t>(order)) << 16 |
                         static_cast<uint64_t>(blocks) << 24 | static_cast<uint64_t>(dim) << 32;
  return base::hash_combine(small, static_cast<uint64_t>(unit));
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kProd: return "prod";
    case ReduceOp::kAvg: return "avg";
  }
  TESSERA_ASSERT(false, "ReduceOp ", static_cast<int>(op));
}

Range cut(int64_t size, int64_t parts, int64_t index, int64_t unit) {
  const int64_t units = (size + unit - 1) / unit;
  const int64_t step = (units + parts - 1) / parts * unit;
  return {std::min(index * step, size), std::min((index + 1) * step, size)};
}

Placements without_partial(Placements placements) {
  for (Placement& placement : placements) {
    if (placement.is_partial()) {
      placement = Replicate();
    }
  }
  return placements;
}

}  // namespace tessera::layout
