// Operator calls for the rules, without a dispatcher in between: from arguments, or written as text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/propagate.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::rules::testing {

// The operator called `name` (`aten::add.Tensor`).
c10::OperatorHandle find_op(const std::string& name);

// Arguments by name.
using Named = std::vector<std::pair<std::string, c10::IValue>>;

// The arguments of `op`: those named, the tensors in order for other tensor arguments (optional ones where there are
// enough), defaults (or None) for the rest.
std::vector<c10::IValue> make_args(const std::string& op, const std::vector<at::Tensor>& tensors,
                                   const Named& rest = {});

// The defined tensors of an argument list in order, those in lists one by one, with the argument each belongs to.
std::vector<std::pair<at::Tensor, int>> tensors_of(const std::vector<c10::IValue>& args);

// The arguments with every defined tensor replaced by the next of `tensors`.
std::vector<c10::IValue> with_tensors(const std::vector<c10::IValue>& args, const std::vector<at::Tensor>& tensors);

// The call with these arguments (tensors of any device), where the i-th defined tensor is laid out as specs[i]. Without
// outputs where the rule decomposes it.
Call make_call(const std::string& op, std::vector<c10::IValue> args, const std::vector<layout::Spec>& specs);

// A tensor argument written down: sizes and layout; contiguous.
struct Arg {
  std::vector<int64_t> sizes;
  std::string layout = "{}";
  bool is_parameter = false;
  c10::ScalarType dtype = c10::kDouble;
};

// Calls on one mesh, written as text. Other arguments than tensors are named, or keep their default.
class Caller {
 public:
  explicit Caller(const std::string& mesh) : mesh_(layout::Mesh::parse(mesh)) {}

  layout::Spec spec(const Arg& arg) const;
  Call call(const std::string& op, const std::vector<Arg>& tensors, const Named& rest = {}) const;

  // `{tp: S(1)} x {tp: S(0)} -> {tp: P}`: what operands and outputs become by the rule of the operator.
  std::string run(const Call& call, const Wishes& wishes = {}) const;
  std::string run(const std::string& op, const std::vector<Arg>& tensors, const Named& rest = {},
                  const Wishes& wishes = {}) const {
    return run(call(op, tensors, rest), wishes);
  }

 private:
  layout::Mesh mesh_;
};

}  // namespace tessera::rules::testing
