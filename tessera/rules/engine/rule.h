// What the engine knows about an operator.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tessera/rules/engine/factor_map.h"

namespace tessera::rules {

// What a local kernel may know of its place: for each operand (after redistribution) and output, the run of every dim
// that this rank holds; of an interleaved dim, the run in its first block.
struct LocalCall {
  const c10::OperatorHandle* op = nullptr;
  std::vector<layout::Spec> operands;
  std::vector<layout::Spec> outputs;
  std::vector<std::vector<layout::Range>> operand_ranges;
  std::vector<std::vector<layout::Range>> output_ranges;
};

// Replaces the plain local call: the stack holds the arguments with local tensors, sizes rewritten (FactorMap::sizes),
// and leaves with local results. It is right for whole tensors too.
using LocalKernel = void (*)(const LocalCall&, torch::jit::Stack&);

// Replaces the whole call by other operators on DTensors, below autograd: the stack holds the arguments as the user
// gave them and leaves with the results.
using Decomposition = void (*)(const c10::OperatorHandle&, torch::jit::Stack&);

// Where the shapes of the outputs come from.
enum class ShapeSource : uint8_t {
  kMeta,     // the operator itself, run on meta tensors
  kFactors,  // the factor map's extents, contiguous, dtype of operand 0 (for operators without a meta kernel)
};

// The rule of one operator. `foo_` and `foo.out` without a rule of their own use that of `foo`.
struct Rule {
  std::function<FactorMap(const Call&)> map;  // null where the rule always decomposes
  LocalKernel local = nullptr;
  // The local kernel is right for interleaved cuts too. (Without one, every operator is.)
  bool takes_interleaved = false;
  // Decompose when `decompose_when` says so (always, if it is null). It is asked first: the call has no outputs yet.
  Decomposition decompose = nullptr;
  bool (*decompose_when)(const Call&) = nullptr;
  // The map reads number arguments (not only ints, bools, dtypes and their lists): their values become part of the
  // cache key.
  bool reads_numbers = false;
  ShapeSource shape = ShapeSource::kMeta;
};

// All rules, by operator name with overload (`aten::add.Tensor`). Built once, then read only.
class RuleTable {
 public:
  // The table of every family (rules/families/families.cpp lists them).
  static const RuleTable& instance();

  // Throws if a name is taken or no such operator exists in this libtorch.
  void add(std::string_view op, Rule rule);
  void add_all(const std::vector<std::string>& ops, const Rule& rule);
  // For an operator that some releases of libtorch lack, or that a higher floor defines.
  void add_optional(std::string_view op, Rule rule);

  // The rule of `op`, of its functional form for an in-place or out= operator, or null. In-place operators that change
  // sizes (squeeze_) have none.
  const Rule* find(std::string_view op) const;
  std::vector<std::string> names() const;

 private:
  std::unordered_map<std::string, Rule> rules_;
};

// The functional name of an in-place or out= operator (`aten::add_.Tensor` -> `aten::add.Tensor`), or the name itself.
std::string functional_name(std::string_view op);

}  // namespace tessera::rules
