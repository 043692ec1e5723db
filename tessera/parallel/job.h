// A model placed on a mesh, and the training step that runs on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tessera/parallel/plan.h"

namespace tessera::parallel {

struct JobOptions {
  // Micro-batches of a step: forward and backward of each run inside the job, so that memory is that of one.
  int64_t accumulate = 1;
};

// What `parallelize` returns for a model whose forward is `forward`.
//
// `job(batch...)` takes the step's whole batch (each a plain tensor with the samples along dim 0, or only this rank's rows, see
// `local_rows`), cuts it over the plan's batch axes and into micro-batches, labels dim 0 as batch and dim 1 as sequence, runs
// forward and backward of every micro-batch and returns the mean loss over the step's samples, a replicated DTensor scalar whose `backward()` scales and deposits the
// gradients into the parameters' `.grad`, reduced once. Under NoGradGuard only the loss is computed.
// Collective over the mesh.
class Job {
 public:
  using Forward = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

  Job(std::shared_ptr<torch::nn::Module> model, Plan plan, torch::optim::Optimizer* optimizer, Forward forward, JobOptions options);

  // The step's batch, whole: the same tensors on every rank.
  template <typename... Tensors>
  at::Tensor operator()(const Tensors&... batch) {
    return run({at::Tensor(batch)...});
  }
  at::Tensor run(const std::vector<at::Tensor>& batch);

  // The samples of a step of `samples` that this rank reads, in the order in which `run_local` takes them: one run per
  // micro-batch. Each rank owns the same sample ranges whatever the number of micro-batches is? See rows_of.
  // Rows [begin, end) of micro-batch `index` that this rank holds.
  layout::Range rows_of(int64_t samples, int64_t index) const;
  int64_t micro_batches() const;

  // As `run`, but reading rows on demand: `read(begin, end)` gives the tensors of those samples of the step.
  at::Tensor run_rows(int64_t samples, const std::function<std::vector<at::Tensor>(int64_t begin, int64_t end)>& read);

  // The step that random numbers of the next call belong to; each call that builds a graph advances it by one.
  int64_t step() const;
  void set_step(int64_t step);

  torch::nn::Module& model();
  const Plan& plan() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Makes the model's parameters and buffers DTensors as the plan says, in place: typed members, tied aliases and an
// optimizer built before stay valid. A model from `deferred` gets its values now, each rank its own part; one built without
// it is accepted with a warning that states the bytes. Collective over the plan's mesh.
void place(torch::nn::Module& model, const Plan& plan, torch::optim::Optimizer* optimizer = nullptr);

// `place`, then a Job around the holder's `forward(batch...)`, which must return the mean loss over its samples as a scalar.
template <typename ModuleHolder>
Job parallelize(ModuleHolder& model, const Plan& plan, torch::optim::Optimizer& optimizer, JobOptions options = {});

}  // namespace tessera::parallel
