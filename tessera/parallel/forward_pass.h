// Forward passes of a placed model that the program runs itself.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/parallel/plan.h"

namespace tessera::parallel {

// Which pass of a training step is run: the step that random numbers belong to, and which of its equal micro-batches.
struct PassPlace {
  int64_t step = 0;
  int64_t index = 0;
  int64_t micro_batches = 1;
};

// The forward passes of a placed model that the program runs itself (`loss = model(batch); loss.backward()`), one after the
// other on one rank. `begin` and `end` stand around each: between them factories give DTensors on the plan's mesh, and what is
// gathered until the next `begin` is shared within the plan's budget.
class ForwardPasses {
 public:
  explicit ForwardPasses(Plan plan) : plan_(std::move(plan)) {}

  // Starts a pass: its batch is cut over the plan's batch axes. `batch` are plain tensors, the same on every rank, and DTensors,
  // which stay as they are. Those whose dim 0 is as long as the first one's are samples (dim 0 is labelled batch and, of two
  // dims, the second sequence); the others are replicated.
  std::vector<at::Tensor> begin(const std::vector<at::Tensor>& batch, const PassPlace& place);

  // Ends it; called too when the forward threw.
  void end();

  const Plan& plan() const { return plan_; }

 private:
  at::Tensor distribute(const at::Tensor& tensor, int64_t samples, const PassPlace& place) const;

  Plan plan_;
  bool is_open_ = false;
  std::optional<layout::Mesh> region_before_;
};

}  // namespace tessera::parallel
