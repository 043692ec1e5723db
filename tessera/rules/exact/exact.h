// How operators run in `exact` numerics: a table beside the ordinary rules.
//
// In `exact` the result of an operator has the same bits on every layout. Most operators have that property as they
// are: they move values or combine elements by IEEE operations. Others get a kernel of their own, and those that sum
// say how the sum of one run of the summed dims is computed; leaves, tree and merge are the engine's business
// (layout/lattice.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/rule.h"

namespace tessera::rules {

// What an exact sum may know besides its arguments.
struct ExactCall {
  const LocalCall* local = nullptr;  // of the whole part; the operands that a kernel sees are cut further
  int64_t leaf = 0;                  // of a node: elements of a leaf along the summed dim
};

// The sum over one node of the tree: the operands hold the node's run of the summed dim. The result is contiguous.
using NodeKernel = at::Tensor (*)(const ExactCall& call, c10::ArrayRef<c10::IValue> args);

// Adds the sum over the tokens of one sample (of one sequence leaf), to which the operands are cut, onto `onto`: the
// tokens in their order first, then one addition for each element. `onto` is contiguous and of the result's local
// sizes.
using SampleKernel = void (*)(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);

struct ExactRule {
  LocalKernel local = nullptr;        // instead of the ordinary kernel
  Decomposition decompose = nullptr;  // instead of the call, where `decompose_when` says so (always, if it is null)
  bool (*decompose_when)(const Call&) = nullptr;
  NodeKernel node = nullptr;                  // the operator sums
  SampleKernel sample = nullptr;              // ... over samples too
  bool (*per_sample)(const Call&) = nullptr;  // true: the ordinary kernel is called for each sample alone
  bool keeps_whole = false;                   // what is summed, but for samples, is never cut: it is gathered first
  bool moves = false;                         // it moves, makes or compares values, of any dtype
  bool adds_zeros = false;                    // a split sum has one term that is not zero: any order is exact
  bool (*accepts)(const Call&) = nullptr;     // false: this call has no exact form
};

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
// samples and positions, and samples that stand behind something else in their dim.
void keep_whole(const ExactRule& rule, const Call& call, FactorMap& map);

// The factors that output `index` lacks and some operand has. Those of one element count only if they hold a sample or
// if there are no others.
std::vector<int> summed_factors(const Call& call, const FactorMap& map, size_t index);

}  // namespace tessera::rules
