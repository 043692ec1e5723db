// The training loop of one rank: the one-device loop, and the word `job`.
#pragma once

#include <torch/optim/optimizer.h>

#include "tessera/data/sampler.h"
#include "tessera/models/language_model.h"
#include "tessera/plan/plan.h"
#include "tessera/train/run/config.h"
#include "tessera/train/run/report.h"
#include "tessera/train/run/saves.h"

namespace tessera::train {

// What one rank trains.
struct Training {
  const models::LanguageModel& model;
  const plan::Plan& plan;
  torch::optim::Optimizer& optimizer;
};

// Watches the loop of one rank, on its thread. Every rank's observer is told the same things in the same order, so that
// a method may call collectives if it does so on every rank.
class Observer {
 public:
  virtual ~Observer() = default;
  // A checkpoint that the run was to go on from is damaged, as `what` says; it goes on from `next`.
  virtual void on_damage(const std::string& what, const ResumePoint& next) {}
  // The model has its values.
  virtual void on_start(const Training& training) {}
  // A step begins, counted from 1.
  virtual void on_begin(int64_t step) {}
  // The step's gradients are there; clipping and the optimizer follow.
  virtual void on_update() {}
  // A step is complete, its gradients are gone.
  virtual void on_step(const StepRecord& record, const Training& training) {}
  virtual void on_eval(const EvalRecord& record) {}
  // The run ends after this step, which is saved, because it was asked to: nothing follows.
  virtual void on_finish(int64_t step) {}
  // At the end, each parameter whole, one after the other; only if LoopOptions ask for it. The tensor may be the
  // model's own.
  virtual void on_parameter(const std::string& name, const at::Tensor& parameter) {}
};

struct LoopOptions {
  // Stop after this many steps of the configuration's schedule; 0: after all.
  int64_t steps = 0;
  bool evaluate = true;
  bool gather_parameters = false;
  std::vector<ResumePoint> resume_from = {};  // the first that is not damaged
  std::string init_from = "";                 // a checkpoint whose parameters the model begins with
  SavePolicy saves = {};
};

// A sampler over the configuration's text.
data::Sampler make_sampler(const Config& config);

// Trains in the configuration's numerics: deferred model, optimizer, plan, placement, then `steps` of loss, backward,
// clipping, update, with evaluations and checkpoints on the way; from a checkpoint if one is
// given. Throws an error that names the step and what to try when the loss or the gradient norm is not finite, and
// Stopped when the job is asked to stop. Collective over all ranks of the job, whose number must be the
// configuration's.
void run_loop(const Config& config, const data::Sampler& sampler, const LoopOptions& options, Observer& observer);

}  // namespace tessera::train
