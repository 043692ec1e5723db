#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/dtensor.h"

namespace tessera::dtensor {

namespace {

using Body = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// What the second run needs: the body, and where in the program the first one began.
struct Recording : torch::CustomClassHolder {
  Body body;
  Sites::Position position;
};

// The rank stands where it stood before the first run.
class Again {
 public:
  Again(RankState& state, const Sites::Position& position) : state_(state), here_(state.sites.position()), recomputing_(state.recomputing) {
    state.sites.restore(position);
    state.recomputing = true;
  }
  ~Again() {
    state_.sites.restore(here_);
    state_.recomputing = recomputing_;
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  RankState& state_;
  Sites::Position here_;
  bool recomputing_;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  // `asks` requires a gradient, so that parameters get theirs where no input does.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs, c10::intrusive_ptr<Recording> recording,
                            const at::Tensor& asks) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["recording"] = c10::IValue::make_capsule(recording);
    return recording->body(inputs.vec());
  }

  // Once only: what the second run builds is gone when it returns.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    TESSERA_CHECK(!at::GradMode::is_enabled(), "[recompute] its gradient cannot be differentiated again (create_graph): call the body directly");
    RankState& state = RankState::require();
    const auto recording = c10::static_intrusive_pointer_cast<Recording>(ctx->saved_data["recording"].toCapsule());
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    at::Tensor output;
    {
      const Again again(state, recording->position);
      at::AutoGradMode with_grad(true);
      output = recording->body(inputs);
    }
    if (grads[0].defined() && output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    torch::autograd::variable_list result;
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.resize(inputs.size() + 2);
    return result;
  }
};

}  // namespace

at::Tensor recompute(const Body& body, const std::vector<at::Tensor>& inputs) {
  auto recording = c10::make_intrusive<Recording>();
  recording->body = body;
  recording->position = RankState::require().sites.position();
  at::Tensor asks;
  {
    LocalScope scope;
    asks = at::empty({0}).requires_grad_();
  }
  return Recompute::apply(at::TensorList(inputs), recording, asks);
}

}  // namespace tessera::dtensor
