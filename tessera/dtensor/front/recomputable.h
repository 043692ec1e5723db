// Modules of C++ programs that run again in backward where a plan says so.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/front/dtensor.h"

namespace tessera::dtensor {

// Beside torch::nn::Module, the base of a module that a plan may have recomputed. C++ modules have no hooks, so that
// its forward asks by `run_block`:
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
  // `place` says what the plan has; until then it is not.
  void set_recomputed(bool on) { is_recomputed_ = on; }

 private:
  bool is_recomputed_ = false;
};

// body(input); of a block that is recomputed also in backward, until when the block lives. See `recompute`.
template <typename Block, typename Body>
at::Tensor run_block(Block& block, const at::Tensor& input, Body body) {
  if (!block.is_recomputed()) {
    return body(input);
  }
  return recompute([body = std::move(body), alive = block.shared_from_this()](
                       const std::vector<at::Tensor>& inputs) -> at::Tensor { return body(inputs[0]); },
                   {input});
}

}  // namespace tessera::dtensor
