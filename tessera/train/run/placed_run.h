// What one rank trains: a configuration's model, placed, with its optimizer; and one step of it.
#pragma once

#include <memory>
#include <optional>

#include <torch/optim/optimizer.h>

#include "tessera/models/language_model.h"
#include "tessera/parallel/job.h"
#include "tessera/parallel/loss_scaler.h"
#include "tessera/plan/plan.h"
#include "tessera/train/run/config.h"
#include "tessera/train/run/report.h"

namespace tessera::train {

// The value of a scalar, placed or plain. Collective over its mesh.
double value_of(const at::Tensor& scalar);

// Deferred model, optimizer, plan, placement and job in the configuration's numerics, which are set for the rank. One
// per rank. Making it and stepping are collective over all ranks of the job, whose number must be the configuration's.
class PlacedRun {
 public:
  explicit PlacedRun(const Config& config);
  PlacedRun(const PlacedRun&) = delete;
  PlacedRun& operator=(const PlacedRun&) = delete;

  // Step `step`, counted from 0: loss, backward, `between`, clipping, update. `read` gives tokens and targets of
  // samples of the step. The record has no times. Throws an error that names the step and what to try when the loss or
  // the gradient norm is not finite.
  StepRecord step(int64_t step, const parallel::Job::ReadRows& read, const std::function<void()>& between = [] {});

  models::LanguageModel& model() const { return *model_; }
  const plan::Plan& plan() const { return plan_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  parallel::Job& job() { return *job_; }

 private:
  const Config& config_;
  std::shared_ptr<models::LanguageModel> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  plan::Plan plan_;
  parallel::LossScaler scaler_;
  std::optional<parallel::Job> job_;
};

}  // namespace tessera::train
