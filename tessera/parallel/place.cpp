#include "tessera/parallel/place.h"

#include <algorithm>
#include <map>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/hints.h"
#include "tessera/base/text.h"
#include "tessera/base/values.h"
#include "tessera/comm/core/machine.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/gradients_aside.h"
#include "tessera/dtensor/front/recomputable.h"
#include "tessera/layout/axis_role.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/plan/planned_modules.h"
#include "tessera/watch/step_recorder.h"

namespace tessera::parallel {

namespace {

using dtensor::RankState;
using layout::Placements;

// A model of so many bytes is better not whole on every rank, even for a moment.
constexpr int64_t kWorthDeferring = int64_t{64} << 20;

Placements storage_of(const plan::Plan& plan, const plan::NamedTensor& named) {
  const plan::ParameterPlan* entry = named.is_parameter ? plan.find(named.name) : nullptr;
  return entry && !entry->storage.empty() ? entry->storage : Placements(plan.mesh.ndim());
}

// The bytes of memory that the model held before it was placed.
int64_t plain_bytes(const std::vector<plan::NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const plan::NamedTensor& named : tensors) {
    if (!dtensor::is_dtensor(named.tensor)) {
      bytes += static_cast<int64_t>(named.tensor.nbytes());
    }
  }
  return bytes;
}

// Whether a Python object stands for `impl` that only C++ keeps alive: no program sees it any more.
template <typename Impl>
bool is_unseen(Impl& impl) {
  return impl.pyobj_slot()->load_pyobj() && impl.pyobj_slot()->has_unique_reference();
}

// Whether nobody but the view itself holds the tensor that it was made from by the way, as in `torch.ones(n).view(1,
// n)`.
bool is_sole_holder_of_base(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (!view || !tensor.is_view()) {
    return false;
  }
  const at::TensorBase& base = tensor._base();
  const int own = view->has_bw_view() + (view->has_fw_view() && !view->shared_view_info());
  return is_unseen(*base.unsafeGetTensorImpl()) || static_cast<int>(base.use_count()) <= own;
}

// How many others own the memory of `tensor`.
int64_t other_owners(const at::Tensor& tensor) {
  const c10::Storage& memory = tensor.storage();
  return static_cast<int64_t>(memory.use_count()) - 1 - is_unseen(*memory.unsafeGetStorageImpl()) -
         is_sole_holder_of_base(tensor);
}

void check_sole_owner(const plan::NamedTensor& named) {
  const int64_t others = other_owners(named.tensor);
  TESSERA_CHECK_AS(
      PlanError, others == 0, "[parallelize] the memory of `", named.name, "` is shared with ", others,
      " other tensors (views, slices, a "
      "detached copy), which would go stale without a word. Make them clones, or take them again after parallelize.");
}

// A plain tensor becomes this rank's part of itself.
void convert(const at::Tensor& tensor, const layout::Mesh& mesh, const Placements& placements) {
  if (!tensor.defined() || dtensor::is_dtensor(tensor)) {
    return;
  }
  at::NoGradGuard no_grad;
  const at::Tensor part = dtensor::distribute(tensor.detach(), mesh, placements);
  if (tensor.is_view() && !tensor.requires_grad()) {
    tensor.unsafeGetTensorImpl()->set_autograd_meta(nullptr);  // no view any more
  }
  dtensor::become(tensor, part);
}

// A DTensor becomes one of another dtype, in place.
void cast(at::Tensor tensor, at::ScalarType dtype) {
  if (!tensor.defined() || tensor.scalar_type() == dtype) {
    return;
  }
  const at::NoGradGuard no_grad;
  const dtensor::Meta& meta = *dtensor::meta_of(tensor);
  tensor.set_data(dtensor::wrap(meta.local.to(dtype), meta.spec.with_dtype(dtype), meta.origin));
}

// Where what an optimizer keeps for a parameter lies: as the parameter in the dims that it shares with it. Of another
// number of dims, it has an entry for each row if its first dim is the parameter's.
Placements placements_of_state(const at::Tensor& state, const layout::Spec& parameter) {
  const auto lacks_dim = [&](const layout::Placement& cut) {
    if (cut.spans) {
      return state.dim() != parameter->ndim() ||
             !std::equal(state.sizes().begin(), state.sizes().begin() + cut.dim + 1, parameter->sizes.begin());
    }
    const bool may_share = state.dim() == parameter->ndim() || (cut.dim == 0 && state.dim() > 0);
    return !may_share || state.size(cut.dim) != parameter->sizes[cut.dim];
  };
  return layout::without_cuts(parameter->placements, lacks_dim);
}

void convert_optimizer(torch::optim::Optimizer& optimizer, const std::vector<plan::NamedTensor>& tensors) {
  const OptimizerKind* kind = find_kind(optimizer);
  for (const plan::NamedTensor& named : tensors) {
    const auto state = optimizer.state().find(named.tensor.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) {
      continue;
    }
    TESSERA_CHECK_AS(
        PlanError, kind,
        "[parallelize] the optimizer has state already, of a kind whose tensors tessera cannot find; known are those "
        "of ",
        optimizer_names(),
        ". Tell of yours with register_optimizer, build the optimizer after place(), or call parallelize before its "
        "first step.");
    TensorVisitor visitor([&](const char*, const at::Tensor& value) {
      if (value.defined()) {
        place_state(value, named.tensor);
      }
    });
    kind->visit_state(*state->second, visitor);
  }
}

// What training keeps beside each parameter, in its size: its gradient, and what the optimizer is known to keep from
// its first step on.
int64_t kept_beside(const torch::optim::Optimizer& optimizer) {
  const bool has_moments =
      dynamic_cast<const torch::optim::AdamW*>(&optimizer) || dynamic_cast<const torch::optim::Adam*>(&optimizer);
  return has_moments ? 3 : 1;
}

// Where on the mesh a tensor is, and others are not.
Placements place_of(Placements placements) {
  std::replace_if(
      placements.begin(), placements.end(), [](const layout::Placement& p) { return !p.is_on(); }, layout::Replicate());
  return placements;
}

// Bytes that a rank will hold of these tensors, with `kept` more tensors for each that is trained: of the rank with the
// largest parts, and of the stage with the most.
double bytes_of_rank(const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan, int64_t kept) {
  std::map<std::string, double> bytes;  // by where a tensor is and others are not
  for (const plan::NamedTensor& named : tensors) {
    const at::Tensor& tensor = named.tensor;
    const auto spec =
        layout::Spec::contiguous(plan.mesh, storage_of(plan, named), tensor.sizes(), tensor.scalar_type());
    double part = static_cast<double>(tensor.element_size());
    for (const int64_t size : spec.largest_sizes()) {
      part *= static_cast<double>(size);
    }
    bytes[layout::str(plan.mesh, place_of(spec->placements))] +=
        part * static_cast<double>(1 + (tensor.requires_grad() ? kept : 0));
  }
  const std::string anywhere = layout::str(plan.mesh, Placements(static_cast<size_t>(plan.mesh.ndim())));
  double most = 0;
  for (const auto& [place, own] : bytes) {
    most = std::max(most, place == anywhere ? 0 : own);
  }
  return most + bytes[anywhere];
}

// Before anything is allocated.
void verify_memory(const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan,
                   const torch::optim::Optimizer* optimizer) {
  if (!base::has_values()) {
    return;  // nor is it later
  }
  const int64_t ranks = comm::ranks_on_machine(), machine = comm::machine_bytes();
  const double bytes = bytes_of_rank(tensors, plan, optimizer ? kept_beside(*optimizer) : 0),
               all = bytes * static_cast<double>(ranks);
  const auto text = [](double number) { return base::human_bytes(static_cast<int64_t>(std::min(number, 9e18))); };
  TESSERA_CHECK_AS(
      PlanError, all <= static_cast<double>(machine), "[parallelize] the model on mesh {", plan.mesh.str(), "} takes ",
      text(bytes), " a rank", optimizer ? " with its gradients and the optimizer's state" : "", ", ", text(all),
      " for the ", ranks, ranks == 1 ? " rank" : " ranks", " on this machine, which has ", base::human_bytes(machine),
      "; accepted: a smaller model, a mesh that cuts it into smaller parts (a larger tp), or more machines");
}

// The plan fits, and nothing is placed yet.
void verify(const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const plan::NamedTensor& named : tensors) {
    if (named.is_parameter) {
      sizes[named.name] = named.tensor.sizes().vec();
    }
    TESSERA_CHECK_AS(
        PlanError, is_deferred(named.tensor) || !dtensor::is_dtensor(named.tensor), "[parallelize] `", named.name,
        "` is a DTensor already: the model has been placed before. Build a new one, or redistribute its parameters.");
  }
  plan.verify(sizes);
}

// How the plan has it read, by axes.
dtensor::GatherPolicy policy_of(const plan::ParameterPlan& entry) {
  dtensor::GatherPolicy policy;
  for (size_t axis = 0; axis < entry.storage.size(); ++axis) {
    const auto is_whole = [&](const std::optional<Placements>& state) {
      return state && entry.storage[axis].is_shard() && (*state)[axis].is_replicate();
    };
    const bool is_fetched = entry.storage[axis].is_on() && entry.compute && (*entry.compute)[axis].is_replicate();
    const auto add_if = [&](bool holds, std::vector<int64_t>& axes) {
      if (holds) {
        axes.push_back(static_cast<int64_t>(axis));
      }
    };
    add_if(is_whole(entry.compute), policy.read);
    add_if(is_fetched, policy.fetched);
    add_if(is_whole(entry.kept), policy.kept);
    add_if(entry.gradient && !(*entry.gradient)[axis].is_partial(), policy.merged);
  }
  policy.dtype = entry.compute_dtype;
  policy.merge_dtype = entry.reduce_dtype;
  policy.is_kept = entry.kept && (!policy.kept.empty() || policy.dtype);
  policy.is_grouped = !entry.group.empty() && !policy.read.empty();
  return policy;
}

// What the plan says about a parameter goes with it.
void attach(RankState& state, const plan::NamedTensor& named, const plan::Plan& plan) {
  const plan::ParameterPlan* entry = plan.find(named.name);
  dtensor::ParameterInfo info{named.name, base::hash_string(named.name), {}, {}};
  if (entry) {
    info.input = entry->input, info.output = entry->output;
    info.gather = state.engine.parameters.find_or_add(policy_of(*entry));
  }
  state.engine.parameters.add(named.tensor, std::move(info));
}

// Parameters of a group are gathered together, where their layouts at every time are alike and they are on one stage.
void bind_groups(RankState& state, const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan) {
  struct Key {
    std::string name;
    at::ScalarType dtype;
    const dtensor::GatherPolicy* policy;
    Placements place;
    bool operator==(const Key&) const = default;
  };
  std::vector<std::pair<Key, std::vector<at::Tensor>>> groups;
  for (const plan::NamedTensor& named : tensors) {
    const auto* policy = named.is_parameter ? dtensor::meta_of(named.tensor)->parameter->gather : nullptr;
    if (!policy || !policy->is_grouped) {
      continue;
    }
    const layout::Spec& stored = dtensor::spec_of(named.tensor);
    const Key key{plan.group_of(named.name), named.tensor.scalar_type(), policy, place_of(stored->placements)};
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == key; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {key, {}});
    }
    group->second.push_back(named.tensor);
  }
  for (const auto& [key, members] : groups) {
    state.engine.parameters.add_group(state.ctx, state.engine.moves, key.name, members);
  }
}

void place_verified(const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan,
                    const torch::optim::Optimizer* optimizer) {
  RankState& state = RankState::require();
  dtensor::verify_operators_to_keep(plan.recompute_keep);
  verify(tensors, plan);
  state.engine.parameters.forget_dropped(state.engine.gathered_groups);
  verify_memory(tensors, plan, optimizer);
  const int64_t bytes = plain_bytes(tensors);
  if (bytes >= kWorthDeferring && state.ctx.rank == 0) {
    TORCH_WARN("[parallelize] the model was built without ", base::in_library("deferred"),
               ": every rank held all of it (", base::human_bytes(bytes), ") before keeping its part.");
  }
  std::vector<Materialization> waiting;
  for (const plan::NamedTensor& named : tensors) {
    waiting.push_back({named.tensor, storage_of(plan, named)});
  }
  materialize(plan.mesh, waiting);
  for (const plan::NamedTensor& named : tensors) {
    if (dtensor::is_dtensor(named.tensor)) {
      continue;
    }
    check_sole_owner(named);
    const Placements placements = storage_of(plan, named);
    convert(named.tensor, plan.mesh, placements);
    convert(named.tensor.grad(), plan.mesh, placements);
  }
  std::vector<at::Tensor> parameters;
  watch::NamedTensors recorded;
  for (const plan::NamedTensor& named : tensors) {
    if (!named.is_parameter) {
      continue;
    }
    if (const plan::ParameterPlan* entry = plan.find(named.name); entry && entry->storage_dtype) {
      cast(named.tensor, *entry->storage_dtype);
      cast(named.tensor.grad(), *entry->storage_dtype);
    }
    attach(state, named, plan);
    parameters.push_back(named.tensor);
    recorded.emplace_back(named.name, named.tensor);
  }
  watch::record_steps(recorded);
  bind_groups(state, tensors, plan);
  dtensor::merge_in_each_pass(parameters);
  if (!layout::axes_of(plan.mesh, layout::AxisRole::kSharded).empty()) {
    // The thread's: it casts under a lock of all threads, and the cast of a parameter in parts waits for other ranks.
    at::autocast::set_autocast_cache_enabled(false);
  }
}

// The modules of these names, which the plan has run as `what` says. Throws if one cannot be.
std::vector<dtensor::Recomputable*> blocks_of(const torch::nn::Module& model, const std::vector<std::string>& names,
                                              const char* what) {
  std::vector<dtensor::Recomputable*> blocks;
  const auto modules = model.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (const std::string& name : names) {
    const auto module = modules[name];
    auto* block = dynamic_cast<dtensor::Recomputable*>(module.get());
    TESSERA_CHECK_AS(PlanError, block, "[parallelize] the plan has `", name, "` ", what, ", and a ", module->name(),
                     " does not ask whether it is; accepted: modules that are ", base::in_library("Recomputable"),
                     " and run by ", base::in_library("run_block"));
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace

void place_tensors(const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan) {
  place_verified(tensors, plan, nullptr);
}

void place_state(const at::Tensor& state, const at::Tensor& parameter) {
  const layout::Spec& spec = dtensor::spec_of(parameter);
  const Placements placements = placements_of_state(state, spec);
  if (is_deferred(state)) {
    materialize(spec->mesh, {{state, placements}});
  } else {
    convert(state, spec->mesh, placements);
  }
}

at::Tensor placed_state(const at::Tensor& state, const at::Tensor& parameter) {
  if (dtensor::is_dtensor(state)) {
    return state;
  }
  const layout::Spec& spec = dtensor::spec_of(parameter);
  return dtensor::distribute(state, spec->mesh, placements_of_state(state, spec));
}

void place(torch::nn::Module& model, const plan::Plan& plan, torch::optim::Optimizer* optimizer) {
  const plan::ModuleTree tree = plan::describe(model);
  const auto tensors = plan::tensors_of(tree);
  const auto recomputed = blocks_of(model, plan::recomputed_modules(plan, tree), "recomputed");
  const auto offloaded = blocks_of(model, plan::offloaded_modules(plan, tree), "offloaded");
  place_verified(tensors, plan, optimizer);
  for (dtensor::Recomputable* block : recomputed) {
    const auto* module = dynamic_cast<const torch::nn::Module*>(block);
    block->set_recomputed(true, {.keep = plan.recompute_keep, .parameters = module->parameters()});
  }
  for (dtensor::Recomputable* block : offloaded) {
    block->set_offloaded(true);
  }
  if (optimizer) {
    convert_optimizer(*optimizer, tensors);
  }
}

}  // namespace tessera::parallel
