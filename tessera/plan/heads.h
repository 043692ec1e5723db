// Which products are an attention's, its heads, and what one product makes of several.
#pragma once

#include <cstdint>

#include "tessera/plan/options.h"
#include "tessera/plan/roles.h"

namespace tessera::plan {

// Of the attention that a group of Linears belongs to; 0: unknown.
struct Heads {
  int64_t queries = 0;
  int64_t keys = 0;
  bool are_given = false;  // by the caller, not by the model
};

Heads heads_of(const LinearGroup& group, const PlanOptions& options);

// 0: the heads are unknown, or do not divide what the group's reader reads.
int64_t head_dim_of(const LinearGroup& group, const Heads& heads);

// Separate Q, K and V, or one fused product of them, read by the output product.
bool is_attention(const LinearGroup& group, const Heads& heads);

// How the rows of a product lie of which a part is read.
struct Fusion {
  int64_t blocks = 1;          // one after the other: 3 for Q, K and V, 2 for a gate and what it gates; else 1
  bool is_order_known = true;  // else no plan can cut it
};

Fusion fusion_of(const LinearGroup& group, const Heads& heads, const PlanOptions& options);

}  // namespace tessera::plan
