#include "tessera/plan/heads.h"

#include <algorithm>

namespace tessera::plan {

Heads heads_of(const LinearGroup& group, const PlanOptions& options) {
  const auto& first = group.columns.front();
  if (first.is_stacked) {
    return {};
  }
  return options.heads > 0 ? Heads{options.heads, options.kv_heads, true} : Heads{first.heads, first.kv_heads, false};
}

int64_t head_dim_of(const LinearGroup& group, const Heads& heads) {
  return heads.queries > 0 && group.row && group.row->in % heads.queries == 0 ? group.row->in / heads.queries : 0;
}

bool is_attention(const LinearGroup& group, const Heads& heads) {
  const auto head_dim = head_dim_of(group, heads);
  if (head_dim == 0) {
    return false;
  }
  const auto& columns = group.columns;
  const auto keys = heads.keys * head_dim, queries = heads.queries * head_dim;
  if (columns.size() == 1) {
    return columns[0].out == queries + 2 * keys;
  }
  const auto makes = [&](int64_t width) {
    return std::count_if(columns.begin(), columns.end(), [&](const LinearInfo& linear) { return linear.out == width; });
  };
  return columns.size() == 3 && (keys == queries ? makes(queries) == 3 : makes(queries) == 1 && makes(keys) == 2);
}

Fusion fusion_of(const LinearGroup& group, const Heads& heads, const PlanOptions& options) {
  if (group.columns.size() != 1 || !group.row) {
    return {};
  }
  const LinearInfo& linear = group.columns[0];
  if (!is_attention(group, heads)) {
    const bool is_gated = linear.out == 2 * group.row->in && !linear.alternates;
    return {.blocks = is_gated && !options.lattice ? 2 : 1};
  }
  if (heads.are_given) {
    return {};
  }
  const bool is_by_heads =
      linear.name.ends_with("query_key_value");  // so named where the rows are in the order of the heads
  const bool are_blocks = heads.keys == heads.queries && !is_by_heads && !options.lattice;
  return are_blocks ? Fusion{.blocks = 3} : Fusion{.is_order_known = false};
}

}  // namespace tessera::plan
