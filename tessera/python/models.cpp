// Plans, and models on a mesh.
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/comm/core/context.h"
#include "tessera/layout/axis_role.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/forward_pass.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/place.h"
#include "tessera/parallel/whole_step.h"
#include "tessera/plan/adapter_entries.h"
#include "tessera/plan/planned_modules.h"
#include "tessera/python/bind.h"
#include "tessera/python/module_tree.h"

namespace tessera::python {
namespace {

using parallel::ForwardPasses;
using parallel::WholeStep;
using plan::Plan;
using Named = std::vector<std::pair<std::string, at::Tensor>>;
using Dtypes = std::array<std::string, 3>;                                 // of storage, computation and reduction
using Pipeline = std::tuple<std::string, int64_t, int64_t>;                // schedule, stages of a rank, vocabulary
using Groups = std::vector<std::tuple<std::string, std::string, Dtypes>>;  // pattern, sharding, dtypes

plan::Precision precision_of(const Dtypes& dtypes) { return plan::parse_precision(dtypes[0], dtypes[1], dtypes[2]); }

Plan generate_plan(const py::object& model, std::optional<int64_t> devices, const std::optional<layout::Mesh>& mesh,
                   bool sequence_parallel, const std::string& sharding, const Dtypes& dtypes,
                   const std::array<std::vector<std::string>, 3>& blocks, const Pipeline& pipeline, int64_t heads,
                   int64_t kv_heads, const std::string& lattice, const Groups& groups, std::vector<std::string> whole) {
  plan::PlanOptions options;
  const auto* context = comm::RankContext::current();
  options.devices = devices ? *devices : context ? context->world_size : 1;
  options.mesh = mesh;
  options.sequence_parallel = sequence_parallel;
  options.sharding = plan::parse_sharding(sharding);
  options.precision = precision_of(dtypes);
  for (const auto& [pattern, group_sharding, group_dtypes] : groups) {
    options.groups.push_back({pattern, plan::parse_sharding(group_sharding), precision_of(group_dtypes)});
  }
  options.whole = std::move(whole);
  options.recompute = blocks[0], options.recompute_keep = blocks[1], options.offload = blocks[2];
  std::tie(options.schedule, options.stages_per_rank, options.vocabulary) = pipeline;
  options.heads = heads;
  options.kv_heads = kv_heads;
  if (!lattice.empty()) {
    options.lattice = sums::Lattice::parse(lattice);
  }
  return parallel::generate_plan(describe(model), options);
}

parallel::Batch parse_batch(const std::string& batch) {
  TORCH_CHECK_VALUE(batch == "whole" || batch == "local", "[parallelize] batch \"", batch,
                    "\"; accepted: \"whole\", the same rows on every rank, and \"local\", each data rank's own");
  return batch == "whole" ? parallel::Batch::kWhole : parallel::Batch::kLocal;
}

bool shards_parameters(const layout::Mesh& mesh) { return !layout::axes_of(mesh, layout::AxisRole::kSharded).empty(); }

ForwardPasses place(const py::object& model, const Plan& plan, int64_t micro_batches, const std::string& batch) {
  const plan::ModuleTree tree = describe(model);
  ForwardPasses passes(plan::for_wrapped(plan, tree), micro_batches, parse_batch(batch));
  auto tensors = plan::tensors_of(tree);
  const py::gil_scoped_release unlocked;
  parallel::place_tensors(tensors, passes.plan());
  tensors.clear();
  return passes;
}

// Places adapters that were put on the placed model since, and are plain. Returns whether there were any.
bool place_added(const ForwardPasses& passes, const py::object& model) {
  const plan::ModuleTree tree = describe(model);
  auto tensors = plan::tensors_of(tree);
  std::map<std::string, plan::AdapterInfo> adapters;
  for (const plan::AdapterInfo& adapter : plan::find_adapters(tree)) {
    adapters[adapter.name] = adapter;
  }
  std::erase_if(tensors, [&](const plan::NamedTensor& named) {
    return dtensor::is_dtensor(named.tensor) || !adapters.contains(named.name);
  });
  if (tensors.empty()) {
    return false;
  }
  std::vector<plan::AdapterInfo> added;
  for (const plan::NamedTensor& named : tensors) {
    added.push_back(adapters[named.name]);
  }
  const py::gil_scoped_release unlocked;
  parallel::place_tensors(tensors, plan::for_added(passes.plan(), added));
  tensors.clear();
  return true;
}

// Those of a model that is placed already.
ForwardPasses forward_passes(const Plan& plan, int64_t micro_batches, const std::string& batch) {
  return ForwardPasses(plan, micro_batches, parse_batch(batch));
}

// A model refers to its passes, so that whoever pickles one comes here.
template <typename Passes>
py::object refuse_pickle(const Passes&) {
  TORCH_CHECK_TYPE(false,
                   "a model that was parallelized cannot be pickled: each rank has its part of it. Write "
                   "torch.save(tessera.full_state_dict(model), path), "
                   "or tessera.save(\"model.safetensors\", model); copy.deepcopy(model) is a copy on the same ranks");
  return py::none();
}

ForwardPasses copy(const ForwardPasses& passes, const py::args&) { return passes.of_copy(); }

std::vector<dtensor::NamedValue> values_of(const Named& batch) {
  std::vector<dtensor::NamedValue> values;
  for (const auto& [name, tensor] : batch) {
    values.push_back({name, tensor});
  }
  return values;
}

std::vector<at::Tensor> begin(ForwardPasses& passes, const Named& batch) { return passes.begin(values_of(batch)); }

std::unique_ptr<WholeStep> whole_step(const Plan& plan, int64_t micro_batches, const std::string& batch) {
  return std::make_unique<WholeStep>(plan, micro_batches, parse_batch(batch));
}

std::unique_ptr<WholeStep> copy_step(const WholeStep& step, const py::args&) {
  return std::make_unique<WholeStep>(step.plan(), step.micro_batches(), step.rows());
}

at::Tensor run_step(WholeStep& whole, int64_t step, const Named& batch, const std::vector<at::Tensor>& parameters,
                    const py::function& forward) {
  const py::gil_scoped_release unlocked;
  return whole.run(step, values_of(batch), parameters, [&](const std::vector<at::Tensor>& given) {
    const py::gil_scoped_acquire locked;
    return forward(given).cast<at::Tensor>();
  });
}

// Recorded between `__enter__` and `__exit__`.
class Deferred {
 public:
  void enter() { scope_.emplace(); }
  void exit(const py::args&) { scope_.reset(); }

 private:
  std::optional<parallel::DeferredScope> scope_;
};

}  // namespace

void bind_models(py::module_& module) {
  py::class_<Plan>(module, "Plan",
                   "What runs where, as data beside the model. Printed as JSON; Plan.from_json reads it.")
      .def_readonly("mesh", &Plan::mesh, "The mesh that it is for.")
      .def_readonly("batch_axes", &Plan::batch_axes, "The axes that cut the batch, slowest first.")
      .def_readonly("recompute", &Plan::recompute, "Patterns over names of modules that run again in backward.")
      .def_readonly("recompute_keep", &Plan::recompute_keep, "Operators in them whose results are kept.")
      .def_readonly("always_walked", &Plan::always_walked,
                    "Patterns over names of modules that ranks of other stages walk for every micro-batch.")
      .def_readonly("offload", &Plan::offload, "Patterns over names of modules whose saved activations are offloaded.")
      .def_readonly("schedule", &Plan::schedule, "By which the stages of the pp axis share a step's micro-batches.")
      .def_readonly("stages_per_rank", &Plan::stages_per_rank, "Of that schedule.")
      .def_readonly("vocabulary", &Plan::vocabulary,
                    "Barriers of that schedule's passes for a cut vocabulary; 0: none.")
      .def_readonly("notes", &Plan::notes, "What could not be divided, and why.")
      .def("json", &Plan::json, "The plan as text, one line an entry.")
      .def_static("from_json", &Plan::from_json, "The plan that `json` wrote, or a person.")
      .def("__eq__", [](const Plan& a, const Plan& b) { return a == b; })
      .def("__repr__", &Plan::json);
  module.def("generate_plan", &generate_plan);
  module.def("shards_parameters", &shards_parameters, "Whether an axis of the mesh cuts what is kept of parameters.");
  module.def("with_near_ranks", &layout::with_near_ranks,
             "The mesh with its axis that shards as two, the last of so many ranks.");

  py::class_<Deferred>(module, "Deferred")
      .def(py::init<>())
      .def("__enter__", &Deferred::enter)
      .def("__exit__", &Deferred::exit);
  module.def("is_deferred", &parallel::is_deferred, "Whether the tensor, made by `deferred`, has no values yet.");

  py::class_<ForwardPasses>(module, "ForwardPasses")
      .def("begin", &begin, Unlocked())
      .def("more_rows", &ForwardPasses::more_rows, Unlocked())
      .def("end", &ForwardPasses::end)
      .def("finish_step", &ForwardPasses::finish_step)
      .def("give_step", &ForwardPasses::give_step)
      .def("__copy__", &copy)
      .def("__deepcopy__", &copy)
      .def("__reduce__", &refuse_pickle<ForwardPasses>)
      .def_property("step", &ForwardPasses::step, &ForwardPasses::set_step)
      .def_property_readonly("plan", &ForwardPasses::plan);
  py::class_<WholeStep>(module, "WholeStep")
      .def(py::init(&whole_step))
      .def("run", &run_step)
      .def("tell_targets", &WholeStep::tell_targets, Unlocked())
      .def("tell_share", &WholeStep::tell_share)
      .def_property_readonly("first_sample", &WholeStep::first_sample)
      .def("__copy__", &copy_step)
      .def("__deepcopy__", &copy_step)
      .def("__reduce__", &refuse_pickle<WholeStep>);
  module.def("recomputed_modules",
             [](const Plan& plan, const py::object& model) { return plan::recomputed_modules(plan, describe(model)); });
  module.def("offloaded_modules",
             [](const Plan& plan, const py::object& model) { return plan::offloaded_modules(plan, describe(model)); });
  module.def("passable_modules",
             [](const Plan& plan, const py::object& model) { return plan::passable_modules(plan, describe(model)); });
  module.def("place", &place);
  module.def("place_added", &place_added);
  module.def("forward_passes", &forward_passes);
  module.def("place_state", &parallel::place_state, Unlocked());
  module.def("placed_state", &parallel::placed_state, Unlocked());
}

}  // namespace tessera::python
