// Any matrix-wise optimizer, unmodified, on whole matrices, each at one rank.
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "tessera/optim/wholes.h"

namespace tessera::optim {

struct OwnedOptions {
  OwnedOver over = OwnedOver::kCuts;
};

// Runs another optimizer on plain, whole tensors: before its step the gradient of each parameter goes to the
// parameter's owner, and the new value comes back to the parameter's layout. Given equal gradients, the parameters have
// the bits that the optimizer gives plain tensors on one thread, in both numerics. Its state is plain, lives at the
// owner and nowhere else. Its options are those of this optimizer's groups, which schedules change. Parameters that are
// plain (before `place`, or without a mesh) are stepped as they are. Checkpoints of a job have its state, whole, if the
// optimizer that it runs is of a known kind (parallel::register_optimizer). Collective over the parameters' mesh.
class Owned : public torch::optim::Optimizer {
 public:
  explicit Owned(std::unique_ptr<torch::optim::Optimizer> optimizer, OwnedOptions options = {});

  torch::Tensor step(LossClosure closure = nullptr) override;

  // The optimizer that is run. Between steps it has no state.
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // Where its parameters have their owners.
  Wholes& wholes() { return wholes_; }

 private:
  std::vector<at::Tensor> all_parameters() const;
  void run_on(const std::vector<at::Tensor>& stepped);

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Wholes wholes_;
};

// The optimizer on whole matrices: owned(std::make_unique<Muon>(model->matrices(), ...)).
std::unique_ptr<Owned> owned(std::unique_ptr<torch::optim::Optimizer> optimizer, OwnedOptions options = {});

}  // namespace tessera::optim
