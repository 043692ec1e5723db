// What a node of ours keeps of its operands until backward. Of a view of a parameter's gathered copy (one expert's
// weight, `w[i]`) it is the parameter and the view, which is made again: the graph does not hold the copy, which is
// gathered once more in backward.
#pragma once

#include <memory>
#include <optional>

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::dtensor {

class KeptOperand {
 public:
  KeptOperand() = default;
  explicit KeptOperand(const at::Tensor& operand);

  // Throws as SavedVariable::unpack does.
  at::Tensor unpack() const;
  void release();

 private:
  torch::autograd::SavedVariable saved_;
  std::unique_ptr<torch::autograd::ViewFunc> view_;  // of what is saved; none: that is the operand
};

// How a parameter's gradient, or a view's of one, should lie: the parameter, or a tensor that lies as the view does and
// has no memory of its own. None of what is no parameter.
std::optional<at::Tensor> layout_of_parameter(const at::Tensor& operand);

}  // namespace tessera::dtensor
