#include <set>

#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/job.h"

namespace tessera::parallel {

namespace {

using dtensor::RankState;
using layout::Placements;

// A parameter or buffer under its first name.
struct Named {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

std::vector<Named> tensors_of(const torch::nn::Module& model) {
  std::vector<Named> all;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) all.push_back({name, tensor, is_parameter});
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : model.named_buffers()) add(item.key(), item.value(), false);
  return all;
}

Placements storage_of(const Plan& plan, const Named& named) {
  const ParameterPlan* entry = named.is_parameter ? plan.find(named.name) : nullptr;
  return entry && !entry->storage.empty() ? entry->storage : Placements(plan.mesh.ndim());
}

// The bytes of memory that the model held before it was placed.
int64_t plain_bytes(const std::vector<Named>& tensors) {
  int64_t bytes = 0;
  for (const Named& named : tensors) {
    if (!dtensor::is_dtensor(named.tensor)) bytes += static_cast<int64_t>(named.tensor.nbytes());
  }
  return bytes;
}

void check_sole_owner(const Named& named) {
  TESSERA_CHECK_AS(PlanError, named.tensor.storage().use_count() == 1, "[parallelize] the memory of `", named.name, "` is shared with ",
                   named.tensor.storage().use_count() - 1, " other tensors (views, slices, a detached copy), which would go stale without a word. Make them "
                   "clones, or take them again after parallelize.");
}

// A plain tensor becomes this rank's part of itself.
void convert(const at::Tensor& tensor, const layout::Mesh& mesh, const Placements& placements) {
  if (!tensor.defined() || dtensor::is_dtensor(tensor)) return;
  at::NoGradGuard no_grad;
  dtensor::become(tensor, dtensor::distribute(tensor.detach(), mesh, placements));
}

using Visit = std::function<void(at::Tensor)>;

// Calls `visit` with every tensor that the optimizer keeps for a parameter.
void for_each_state(torch::optim::OptimizerParamState& state, const Visit& visit) {
  const auto maybe = [&](const at::Tensor& tensor) {
    if (tensor.defined()) visit(tensor);
  };
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    maybe(adamw->exp_avg()), maybe(adamw->exp_avg_sq()), maybe(adamw->max_exp_avg_sq());
  } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    maybe(adam->exp_avg()), maybe(adam->exp_avg_sq()), maybe(adam->max_exp_avg_sq());
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    maybe(sgd->momentum_buffer());
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    maybe(rmsprop->square_avg()), maybe(rmsprop->momentum_buffer()), maybe(rmsprop->grad_avg());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    maybe(adagrad->sum());
  } else {
    TESSERA_THROW(PlanError, "[parallelize] the optimizer has state already, of a kind whose tensors tessera cannot find; known are those of "
                  "SGD, Adam, AdamW, RMSprop and Adagrad. Build the optimizer after place(), or call parallelize before its first step.");
  }
}

void convert_optimizer(torch::optim::Optimizer& optimizer, const std::vector<Named>& tensors, const Plan& plan) {
  for (const Named& named : tensors) {
    const auto state = optimizer.state().find(named.tensor.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    const Placements placements = storage_of(plan, named);
    for_each_state(*state->second, [&](at::Tensor kept) {
      const bool whole = kept.sizes() == named.tensor.sizes();
      if (is_deferred(kept)) {
        materialize(plan.mesh, {{kept, placements}});
      } else {
        convert(kept, plan.mesh, whole ? placements : Placements(plan.mesh.ndim()));
      }
    });
  }
}

}  // namespace

void place(torch::nn::Module& model, const Plan& plan, torch::optim::Optimizer* optimizer) {
  RankState& state = RankState::require();
  const std::vector<Named> tensors = tensors_of(model);
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const Named& named : tensors) {
    if (named.is_parameter) sizes[named.name] = named.tensor.sizes().vec();
    TESSERA_CHECK_AS(PlanError, is_deferred(named.tensor) || !dtensor::is_dtensor(named.tensor), "[parallelize] `", named.name,
                     "` is a DTensor already: the model has been placed before. Build a new one, or redistribute its parameters.");
  }
  plan.verify(sizes);
  const int64_t bytes = plain_bytes(tensors);
  if (bytes > 0 && state.ctx.rank == 0) {
    TORCH_WARN("[parallelize] the model was built without tessera::deferred: every rank held all of it (", base::human_bytes(bytes),
               ") before keeping its part.");
  }

  std::vector<Materialization> waiting;
  for (const Named& named : tensors) waiting.push_back({named.tensor, storage_of(plan, named)});
  materialize(plan.mesh, waiting);
  for (const Named& named : tensors) {
    if (dtensor::is_dtensor(named.tensor)) continue;
    check_sole_owner(named);
    const Placements placements = storage_of(plan, named);
    convert(named.tensor, plan.mesh, placements);
    convert(named.tensor.grad(), plan.mesh, placements);
  }
  if (optimizer) convert_optimizer(*optimizer, tensors, plan);

  for (const Named& named : tensors) {
    if (!named.is_parameter) continue;
    const ParameterPlan* entry = plan.find(named.name);
    dtensor::ParameterInfo info{named.name, base::hash_string(named.name), {}, {}};
    if (entry) info.input = entry->input, info.output = entry->output;
    state.parameters.push_back(std::move(info));
    dtensor::meta_of(named.tensor)->parameter = &state.parameters.back();
  }
}

}  // namespace tessera::parallel
