// A model placed on a mesh, and the training step that runs on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tessera/catalogue/name_map.h"
#include "tessera/parallel/local_rows.h"
#include "tessera/parallel/loss_scaler.h"
#include "tessera/parallel/place.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

struct JobOptions {
  // Micro-batches of a step: forward and backward of each run inside the job, so that memory is that of one.
  int64_t accumulate = 1;
  // What `job(batch...)` is given on each rank.
  Batch batch = Batch::kWhole;
  // What updates the parameters: for saving and loading its state with the model's. It must outlive the job.
  torch::optim::Optimizer* optimizer = nullptr;
  // For gradients in float16: scales the loss of each micro-batch and the step's gradients back, and says what
  // overflowed. It must outlive the job, and be asked to take the optimizer's steps.
  LossScaler* loss_scaler = nullptr;
  // How the parameters and buffers are called and lie in checkpoints, so that other libraries read them; without it as
  // in the model. A rule for each of them.
  std::optional<catalogue::NameMap> file_names = {};
};

// A model on a mesh, and its steps. Made by `parallelize`. One per rank; the rank's own thread uses it.
//
// `job(batch...)` takes the step's batch, plain tensors with the samples along dim 0: all of them, the same on every
// rank, or each data rank's own (Batch::kLocal; those that belong to other ranks' parts of the step move there);
// cuts it over the plan's batch axes and into micro-batches, labels dim 0 as batch and dim 1 as sequence, runs forward
// and backward of every micro-batch and returns the mean loss over the step's samples: a replicated DTensor scalar
// whose `backward()` scales the gradients and deposits them into the parameters' `.grad`, reduced once; hooks of
// parameters run then, once. Under NoGradGuard it only computes the loss. The model's loss must be a mean over its
// samples. In calls 1, 2, 4, 8, ... ranks compare their batches: throws if they differ. The model itself, called with
// plain tensors and gradients where the job was meant, throws. Collective over the mesh.
class Job {
 public:
  // The loss of one micro-batch, from its tensors (DTensors).
  using Loss = std::function<at::Tensor(const std::vector<at::Tensor>& batch)>;
  // The tensors of samples [begin, end) of the step, plain (it may be asked for none). Plain factories give plain
  // tensors in it; inside the loss they give DTensors.
  using ReadRows = std::function<std::vector<at::Tensor>(int64_t begin, int64_t end)>;

  // `model` is placed already (see `place`).
  Job(std::shared_ptr<torch::nn::Module> model, plan::Plan plan, Loss loss, JobOptions options = {});

  template <typename... Tensors>
  at::Tensor operator()(const Tensors&... batch) {
    return run({at::Tensor(batch)...});
  }
  at::Tensor run(const std::vector<at::Tensor>& batch);
  // ... whose tensors errors call by these names.
  at::Tensor run_named(const std::vector<dtensor::NamedValue>& batch);

  // As `run`, but this rank reads only the samples it works on: `read` is called once for every micro-batch.
  at::Tensor run_rows(int64_t samples, const ReadRows& read);

  // The samples of a step of `samples` that this rank reads for micro-batch `index`. Over a step they are one
  // contiguous block; in `exact`, where the plan merges gradients in every pass, each micro-batch is cut over the ranks
  // by itself, as in a loop, so that a pass completes its part of every sum. Where the lattice does not give each rank
  // some of every micro-batch, they are blocks all the same, gradients are merged once a step, and rank 0 warns.
  layout::Range rows_of(int64_t samples, int64_t index) const;

  // How many tokens count in the mean loss of the following steps, on this rank, in `exact` numerics: where some
  // targets are ignored and a step has several micro-batches, their number must be known before the first. 0: all of
  // them.
  void set_step_tokens(int64_t tokens);

  // The step that random numbers of the next call belong to; each call that computes gradients advances it by one.
  int64_t step() const;
  void set_step(int64_t step);

  torch::nn::Module& model() const;
  const plan::Plan& plan() const;
  const JobOptions& options() const;

 private:
  // The tensors of this rank's samples of micro-batch `index`.
  using ReadPass = std::function<std::vector<at::Tensor>(int64_t index, const layout::Range& samples)>;
  at::Tensor run_passes_of(int64_t samples, const ReadPass& read);
  at::Tensor run_local(const std::vector<dtensor::NamedValue>& batch, bool is_checked);

  struct State;
  std::shared_ptr<State> state_;
};

namespace detail {

// model->forward(batch[0], batch[1], ...) for as many tensors as it takes.
template <typename Holder, size_t... I>
at::Tensor call_forward(Holder& model, const std::vector<at::Tensor>& batch, std::index_sequence<I...>) {
  if constexpr (requires {
                  { model->forward(batch[I]...) } -> std::convertible_to<at::Tensor>;
                }) {
    if (batch.size() == sizeof...(I)) {
      return model->forward(batch[I]...);
    }
  }
  if constexpr (sizeof...(I) < 8) {
    return call_forward(model, batch, std::make_index_sequence<sizeof...(I) + 1>());
  }
  TORCH_CHECK(false, "[job] the model's forward does not take ", batch.size(), " tensors and return a loss");
}

// A Job whose loss is the placed model's `forward(batch...)`.
template <typename Holder>
Job job_of(Holder model, const plan::Plan& plan, JobOptions options) {
  auto module = model.ptr();
  return Job(
      std::move(module), plan,
      [model = std::move(model)](const std::vector<at::Tensor>& batch) mutable {
        return call_forward(model, batch, std::make_index_sequence<1>());
      },
      options);
}

}  // namespace detail

// `place`, then a Job whose loss is the model's `forward(batch...)`. `model` is a module holder (TORCH_MODULE).
template <typename Holder>
Job parallelize(Holder& model, const plan::Plan& plan, torch::optim::Optimizer& optimizer, JobOptions options = {}) {
  place(*model, plan, &optimizer);
  options.optimizer = &optimizer;
  return detail::job_of(model, plan, options);
}

// The same without an optimizer, or with one that is built later.
template <typename Holder>
Job parallelize(Holder& model, const plan::Plan& plan, JobOptions options = {}) {
  place(*model, plan);
  return detail::job_of(model, plan, options);
}

}  // namespace tessera::parallel
