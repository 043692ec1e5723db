// The forward and backward passes of a job's step, in the order of a list of actions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/front/gradients_aside.h"
#include "tessera/parallel/step.h"
#include "tessera/plan/plan.h"
#include "tessera/schedule/schedule.h"

namespace tessera::parallel {

// What the passes of a step are made of.
struct StepPasses {
  using Tensors = std::vector<at::Tensor>;

  std::vector<PassSamples> samples = {};  // of each micro-batch
  // The tensors of a micro-batch; asked for once, before its first pass. And its forward pass: gives its share of the
  // step's mean loss.
  std::function<Tensors(int64_t micro_batch)> batch = {};
  std::function<at::Tensor(int64_t micro_batch, const Tensors& batch)> loss = {};
  Tensors parameters = {};                     // whose gradients are wanted; none: forward passes alone
  std::optional<double> scale = std::nullopt;  // of losses, before their gradients are taken
  dtensor::PassMerges merges = dtensor::PassMerges::kAll;
};

// What they give: the loss of each micro-batch, and of every parameter the sum of the gradients (undefined: unused),
// merged over ranks as far as passes merged them.
struct StepResult {
  std::vector<at::Tensor> losses, gradients;
};

// Which passes a rank does, in order. One stage at a time of those that the rank has, if it has several.
struct PassList {
  std::vector<schedule::Action> actions;
  bool is_scheduled = false;              // ranks do different lists: a pipeline's schedule
  std::string axis = {};                  // whose coordinates have the stages
  std::vector<int64_t> rank_stages = {};  // this rank's, in ascending order; one or none: they are not told apart
  // Of parameters that are cut over the stages (Plan::vocabulary), which have passes of their own; 0: none have.
  int64_t vocabulary = 0;
};

// Forward and backward of one micro-batch after the other; or forward alone.
PassList passes_in_turn(int64_t micro_batches, bool with_gradients);

// Those of the calling rank in the plan's schedule, which it must have. Throws ConfigError where the schedule is not
// for so many micro-batches.
PassList scheduled_passes(const plan::Plan& plan, int64_t micro_batches);

// Runs them inside of `step`, which has begun. In a schedule every pass walks the whole program, in which operators of
// other stages do nothing: what they would compute comes as a message where it is read, so passes wait for each other
// by that alone. Ranks meet in passes of the head. Collective over the mesh.
//
// With one barrier HEAD_F takes the head's forward pass and the input half of its backward, and HEAD_B is its weight
// half; with two they are its forward and its backward.
StepResult run_passes(Step& step, const PassList& list, const StepPasses& passes);

}  // namespace tessera::parallel
