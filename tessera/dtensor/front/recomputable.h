// Modules of C++ programs that run again in backward, or whose saved activations are offloaded, where a plan says so.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/front/dtensor.h"

namespace tessera::dtensor {

// Beside torch::nn::Module, the base of a module that a plan may have recomputed or offloaded. C++ modules have no
// hooks, so that its forward asks by `run_block`:
//
//     struct BlockImpl : torch::nn::Module, tessera::Recomputable {
//       at::Tensor forward(const at::Tensor& x) {
//         return tessera::run_block(*this, x, [this](const at::Tensor& in) { return in + down(torch::gelu(up(in))); });
//       }
//     };
class Recomputable {
 public:
  virtual ~Recomputable() = default;

  bool is_recomputed() const { return is_recomputed_; }
  bool is_offloaded() const { return is_offloaded_; }
  const RecomputeOptions& recompute_options() const { return options_; }
  // `place` says what the plan has; until then it is neither.
  void set_recomputed(bool on, RecomputeOptions options = {}) {
    is_recomputed_ = on;
    options_ = std::move(options);
  }
  void set_offloaded(bool on) { is_offloaded_ = on; }

 private:
  bool is_recomputed_ = false, is_offloaded_ = false;
  RecomputeOptions options_;
};

// body({input}) as the block is to run it.
at::Tensor run_planned(const Recomputable& block, const at::Tensor& input,
                       std::function<at::Tensor(const std::vector<at::Tensor>&)> body);

// body(input); of a block that is recomputed also in backward, until when the block lives. See `recompute`, `offload`.
template <typename Block, typename Body>
at::Tensor run_block(Block& block, const at::Tensor& input, Body body) {
  if (!block.is_recomputed() && !block.is_offloaded()) {
    return body(input);
  }
  return run_planned(block, input,
                     [body = std::move(body), alive = block.shared_from_this()](
                         const std::vector<at::Tensor>& inputs) -> at::Tensor { return body(inputs[0]); });
}

}  // namespace tessera::dtensor
