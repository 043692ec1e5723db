#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dtensor.h"

namespace tessera::dtensor {

namespace {

using Body = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// What the second run needs: the body, and where in the program the first one began.
struct Recording : torch::CustomClassHolder {
  Body body;
  Sites::Position position;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const std::vector<at::Tensor>& inputs, c10::intrusive_ptr<Recording> recording) {
    ctx->save_for_backward(inputs);
    ctx->saved_data["recording"] = c10::IValue::make_capsule(recording);
    return recording->body(inputs);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    RankState& state = RankState::require();
    const auto recording = c10::static_intrusive_pointer_cast<Recording>(ctx->saved_data["recording"].toCapsule());
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    const Sites::Position here = state.sites.position();
    state.sites.restore(recording->position);
    at::Tensor output;
    {
      at::AutoGradMode with_grad(true);
      state.recomputing = true;
      output = recording->body(inputs);
      state.recomputing = false;
    }
    state.sites.restore(here);
    torch::autograd::backward({output}, {grads[0]});
    torch::autograd::variable_list result;
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.emplace_back();
    return result;
  }
};

}  // namespace

at::Tensor recompute(const Body& body, const std::vector<at::Tensor>& inputs) {
  auto recording = c10::make_intrusive<Recording>();
  recording->body = body;
  recording->position = RankState::require().sites.position();
  return Recompute::apply(inputs, recording);
}

}  // namespace tessera::dtensor
