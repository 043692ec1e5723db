#include "tessera/layout/placement.h"

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"

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
  result.places = Places::in_units(options.unit);
  return result;
}

Placement InterleavedShard(int64_t dim, int64_t blocks, ShardOptions options) {
  options.blocks = blocks;
  return Shard(dim, options);
}

Placement RaggedShard(const std::vector<int64_t>& dims, const std::vector<int64_t>& sizes, ShardOptions options) {
  bool are_leading = !dims.empty();
  for (size_t i = 0; dims.size() > 1 && i < dims.size(); ++i) {
    are_leading &= dims[i] == static_cast<int64_t>(i);
  }
  TESSERA_CHECK(are_leading, "[layout] RaggedShard of dims [", base::join(dims, ", "),
                "]; accepted: one dim, or the leading ones, [0, 1, ...]");
  TESSERA_CHECK(options.unit == 1, "[layout] RaggedShard of dim ", dims[0], " with unit ", options.unit,
                ": its sizes say where it is cut; accepted: sizes that are multiples of the unit");
  Placement result = Shard(dims.back(), options);
  result.places = Places::of_sizes(sizes);
  return dims.size() > 1 ? spanning(result) : result;
}

Placement spanning(Placement cut) {
  TESSERA_CHECK(cut.is_shard() && cut.blocks == 1, "[layout] ", cut.str(),
                " of several dims taken together; accepted: a Shard that is not interleaved");
  cut.spans = cut.dim > 0;
  return cut;
}

Placement Partial(ReduceOp op) {
  Placement result;
  result.kind = Placement::Kind::kPartial;
  result.op = op;
  return result;
}

Placement On(int64_t coordinate) { return On(coordinate, coordinate); }

Placement On(int64_t coordinate, int64_t stage) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  TESSERA_CHECK(coordinate >= 0 && coordinate <= most, "[layout] On(", coordinate,
                "): the coordinate must be 0 or more");
  TESSERA_CHECK(stage >= 0 && stage <= most, "[layout] On(", coordinate, ";", stage, "): the stage must be 0 or more");
  Placement result;
  result.kind = Placement::Kind::kOn;
  result.dim = static_cast<int32_t>(coordinate);
  result.stage = static_cast<int32_t>(stage);
  return result;
}

uint64_t Placement::hash() const {
  const uint64_t small = static_cast<uint64_t>(kind) | static_cast<uint64_t>(op) << 8 |
                         static_cast<uint64_t>(static_cast<uint8_t>(order)) << 16 |
                         static_cast<uint64_t>(blocks) << 24 | static_cast<uint64_t>(dim) << 32;
  const uint64_t hash = base::hash_combine(small, is_on() ? static_cast<uint64_t>(stage) : places.hash());
  return spans ? base::hash_mix(hash) : hash;
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

bool is_linear(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; }

bool commute(ReduceOp a, ReduceOp b) {
  // Sums and means in any order; the others with themselves.
  return a == b || (is_linear(a) && is_linear(b));
}

const char* Placement::kind_name() const {
  switch (kind) {
    case Kind::kReplicate: return "replicate";
    case Kind::kShard:
      return is_interleaved() ? "interleaved shard"
             : is_spanning()  ? "spanning shard"
             : is_ragged()    ? "ragged shard"
                              : "shard";
    case Kind::kPartial: return "partial";
    case Kind::kOn: return "on";
  }
  TESSERA_ASSERT(false, "Placement::Kind ", static_cast<int>(kind));
}

Placements without_partial(Placements placements) {
  std::replace_if(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); }, Replicate());
  return placements;
}

Placements settled(Placements placements) {
  std::replace_if(
      placements.begin(), placements.end(), [](const Placement& p) { return !p.is_settled(); }, Replicate());
  return placements;
}

Placements without_cuts(Placements placements, const std::function<bool(const Placement&)>& is_left) {
  std::replace_if(
      placements.begin(), placements.end(), [&](const Placement& p) { return p.is_shard() && is_left(p); },
      Replicate());
  return placements;
}

Placements with_dims(Placements placements, const std::function<int64_t(int64_t)>& dim_of) {
  for (Placement& placement : placements) {
    if (placement.is_shard()) {
      placement.dim = static_cast<int32_t>(dim_of(placement.dim));
    }
  }
  return placements;
}

int64_t last_spanned_dim(const Placements& placements) {
  const auto found = std::find_if(placements.begin(), placements.end(), [](const Placement& p) { return p.spans; });
  return found == placements.end() ? 0 : found->dim;
}

int64_t last_cut_dim(const Placements& placements) {
  int64_t last = -1;
  for (const Placement& placement : placements) {
    last = placement.is_shard() ? std::max<int64_t>(last, placement.dim) : last;
  }
  return last;
}

bool has_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); });
}

std::vector<int64_t> axes_merged_whole(const Placements& from, const Placements& to) {
  std::vector<int64_t> axes;
  for (size_t a = 0; a < from.size(); ++a) {
    if (from[a].is_partial() && to[a].is_replicate()) {
      axes.push_back(static_cast<int64_t>(a));
    }
  }
  return axes;
}

Placements sent_to(Placements from, const Placements& to) {
  for (size_t a = 0; a < from.size(); ++a) {
    from[a] = from[a].is_on() && to[a].is_on() ? to[a] : from[a];
  }
  return from;
}

Placements sum_of_parts(Placements placements) {
  for (Placement& placement : placements) {
    placement = placement.is_shard() ? Partial() : placement.is_on() ? placement : Replicate();
  }
  return placements;
}

}  // namespace tessera::layout
