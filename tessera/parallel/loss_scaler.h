// Loss scaling, for gradients in float16.
#pragma once

#include <cstdint>

#include <torch/optim/optimizer.h>

namespace tessera::parallel {

// All scales are powers of two, so that a gradient which neither overflows nor underflows has the same bits under each.
struct LossScalerOptions {
  double scale = 65536;     // of the first step
  double growth = 2;        // of the scale after `interval` steps without an overflow
  double backoff = 0.5;     // ... after a step with one
  int64_t interval = 2000;  // steps
};

// Dynamic loss scaling (Micikevicius et al., Mixed Precision Training, 2018), as torch.amp.GradScaler does it: a job
// with one (JobOptions::loss_scaler) multiplies the loss of each micro-batch before its backward pass, divides the
// step's gradients, merged over all ranks, and looks whether they are finite. What one rank finds, all know.
//
//     job(batch...).backward();
//     clip_grad_norm(...);
//     if (!scaler.step(optimizer)) { ... }  // an overflow: nothing was updated, the next step has a smaller scale
//
// A value; on every rank the same. Its state is saved and loaded with the job's.
class LossScaler {
 public:
  struct State {
    double scale = 0;
    int64_t good_steps = 0;  // since the scale changed
    bool operator==(const State&) const = default;
  };

  // Throws for a scale or a factor that is no power of two, a growth below 1, a backoff above 1 and an interval
  // below 1.
  explicit LossScaler(LossScalerOptions options = {});

  double scale() const { return state_.scale; }
  // Of the last step's gradients.
  bool has_overflowed() const { return has_overflowed_; }

  // optimizer.step(), unless gradients have overflowed; then the scale of the next step. Says whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);

  // The job's.
  void note(bool has_overflowed) { has_overflowed_ = has_overflowed; }

  const State& state() const { return state_; }
  void set_state(const State& state);

 private:
  LossScalerOptions options_;
  State state_;
  bool has_overflowed_ = false;
};

}  // namespace tessera::parallel
