// How operators run in `exact` numerics: what a row says besides the ordinary rule.
//
// In `exact` the result of an operator has the same bits on every layout. Most operators have that property as they
// are: they move values or combine elements by IEEE operations. Others get a kernel of their own, and those that sum
// say how the sum of one run of the summed dims is computed; leaves, tree and merge are the engine's business
// (sums/lattice.h, sum_plan.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/exact_rule.h"
#include "tessera/rules/engine/rule.h"
#include "tessera/sums/lattice.h"

namespace tessera::rules {

// Whether a dim of this factor holds samples, or positions only.
bool counts_samples(const layout::DimLabels& labels);
bool counts_positions(const layout::DimLabels& labels);

// Whether a tensor with these labels holds samples.
bool holds_samples(const layout::Labels& labels);

// The label of a factor: that of the first operand that knows it.
layout::DimLabels labels_of_factor(const Call& call, const FactorMap& map, int factor);

// Whether the call is a product of activations: it sums whole rows.
bool sums_whole_rows(const Call& call);

// Forbids cuts of what is summed whole: such an operand is gathered first. In a sum over samples that is all but
// samples and positions, and samples that stand behind something else in their dim. So is a vector without labels that
// is cut inside of the lattice's leaves, and a dim of one element beside others that are summed.
void keep_whole(const ExactRule& rule, const Call& call, const sums::Lattice& lattice, FactorMap& map);

// The factors that output `index` lacks and some operand has. Those of one element count only if they hold a sample or
// if there are no others.
std::vector<int> summed_factors(const Call& call, const FactorMap& map, size_t index);

}  // namespace tessera::rules
