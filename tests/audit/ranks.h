// The ranks of a mesh, one after the other on plain tensors: what a rule decides is carried out and put together again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/support/rule_calls.h"

namespace tessera::audit {

// What becomes of one call.
struct Outcome {
  enum class Kind : uint8_t {
    kRan,         // the results are those of the whole
    kDecomposed,  // the rule replaces the call: its parts are audited for themselves
    kRefused,     // an in-place write that cannot stay where it is
    kWrong,
  };
  Kind kind = Kind::kRan;
  std::string message;  // of kWrong
  bool moved = false;   // an operand had to move
};

// What is compared.
enum class Compare : uint8_t {
  kValues,
  kShapes,  // random or uninitialised values
};

// The results of the operator on whole tensors, those in lists one by one.
std::vector<at::Tensor> run_whole(const std::string& op, const std::vector<c10::IValue>& args);

// The results of what the rule replaces the operator by, on whole tensors.
std::vector<at::Tensor> run_decomposition(const std::string& op, const std::vector<c10::IValue>& args);

// Where two lists of tensors differ, or nothing.
std::optional<std::string> difference(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                                      Compare compare);

// Carries out the rule for operands laid out as `specs` and compares with `expected`. Partial operands hold random
// terms.
Outcome run_ranks(const std::string& op, const std::vector<c10::IValue>& args, const std::vector<layout::Spec>& specs,
                  const std::vector<at::Tensor>& expected, Compare compare);

// Runs the operator as it is on the parts that the ranks of a one-axis mesh hold under `specs`. The layouts of the
// results in which they are right, `S(0) P`, or nothing if there are none.
std::optional<std::string> try_without_rule(const std::string& op, const std::vector<c10::IValue>& args,
                                            const std::vector<layout::Spec>& specs,
                                            const std::vector<at::Tensor>& expected);

}  // namespace tessera::audit
