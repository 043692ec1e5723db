// A training step that the program takes by one forward call of its model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/parallel/job.h"
#include "tessera/parallel/step_targets.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

// The steps of a placed model whose forward passes the program does not see: one call is given the step's batch, which
// a Job cuts into micro-batches, and gives the step's loss, whose `backward()` deposits the gradients. It is for models
// in another language: `forward` runs one micro-batch.
//
// Beside what a Job does it weighs mean losses by the targets that count in them, so that the result is the whole
// batch's where some are ignored. It must be told of such losses. One per model and rank; the rank's own thread uses
// it.
class WholeStep {
 public:
  // The loss of one micro-batch, from the batch's tensors in the order of `run`, as DTensors.
  using Forward = std::function<at::Tensor(const std::vector<at::Tensor>& batch)>;

  WholeStep(plan::Plan plan, int64_t micro_batches, Batch rows);
  WholeStep(const WholeStep&) = delete;
  WholeStep& operator=(const WholeStep&) = delete;

  // The tensors of `batch` that have as many rows as the first one are samples, which are cut; the others every
  // micro-batch is given whole. All are plain. Collective over the plan's mesh.
  at::Tensor run(int64_t step, const std::vector<dtensor::NamedValue>& batch, const std::vector<at::Tensor>& parameters,
                 const Forward& forward);

  // Inside of `forward`: the model takes a mean over those of these targets that are not `ignored`. Collective over the
  // axes that cut them.
  void tell_targets(const at::Tensor& targets, int64_t ignored);
  // ... or, unless it takes a mean, its loss is the micro-batch's share of the step's, by a number that the program
  // gave the model.
  void tell_share() { pass_.is_share = true; }

  // ... and the first of the step's samples that the pass is over.
  int64_t first_sample() const;

  int64_t micro_batches() const { return job_.options().accumulate; }
  const plan::Plan& plan() const { return job_.plan(); }
  Batch rows() const { return job_.options().batch; }

 private:
  // Integers of a pass, as it was given them.
  struct GivenIntegers {
    const std::string* name;
    dtensor::MetaPtr meta;
    dtensor::Moment moment;
  };
  // What the pass that runs is over, and what it told of its loss.
  struct Pass {
    int64_t samples = 0, of_samples = 0;  // of those of the step
    const layout::Origin* origin = nullptr;
    std::optional<StepTargets::Counts> counts = std::nullopt;
    size_t losses = 0;  // that were told
    bool is_share = false;
    std::vector<GivenIntegers> integers = {};
  };
  // What a call was given.
  struct Given {
    const Forward* forward = nullptr;
    std::vector<std::string> names = {};                // of what is samples
    std::vector<std::optional<at::Tensor>> whole = {};  // by their place in the batch; nothing: samples
    StepTargets targets = StepTargets({});
    std::vector<int64_t> counts = {};  // of the step, by the losses of a pass
    bool is_announced = false;         // ... to exact sums, which divide by it
  };
  struct Parameters;

  std::vector<dtensor::NamedValue> take(const std::vector<dtensor::NamedValue>& batch, const Forward& forward);
  at::Tensor loss_of(const std::vector<at::Tensor>& rows);
  // Which of its integers the targets are, in some shape, as it was given them; null if that is not known.
  const std::string* given_as(const at::Tensor& targets) const;
  // The loss so that the job, which weighs by samples, weighs by what counts.
  at::Tensor weighed(const at::Tensor& loss) const;
  void verify_told() const;
  void verify_one_weight(const StepTargets::Counts& counts, bool is_exact) const;
  // ... as in the passes before.
  void verify_same_count(size_t loss, int64_t of_step);

  std::shared_ptr<Parameters> parameters_;
  Job job_;
  Given given_;
  Pass pass_;
};

}  // namespace tessera::parallel
