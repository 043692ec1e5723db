// DTensors: made, moved, read and shown.
#include <torch/csrc/autograd/python_variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/chunks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/gather_to.h"
#include "tessera/dtensor/front/offload.h"
#include "tessera/dtensor/front/pass_over.h"
#include "tessera/dtensor/front/plain.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/random/rng_state.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/python/bind.h"
#include "tessera/python/convert.h"

namespace tessera::python {
namespace {

using dtensor::is_dtensor;
using layout::Mesh;

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, const py::object& placements) {
  const auto where = placements_of(mesh, placements, tensor.dim());
  const py::gil_scoped_release unlocked;
  return dtensor::distribute(tensor, mesh, where);
}

at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const py::object& placements,
                      std::optional<std::vector<int64_t>> shape) {
  const auto where = placements_of(mesh, placements, local.dim());
  const py::gil_scoped_release unlocked;
  return dtensor::from_local(local, mesh, where, std::move(shape));
}

at::Tensor redistribute(const at::Tensor& tensor, const py::object& mesh, const py::object& placements) {
  const Mesh& own = dtensor::spec_of(tensor)->mesh;
  const Mesh to = mesh.is_none() ? own : mesh.cast<Mesh>();
  const auto where = placements_of(to, placements, tensor.dim());
  const py::gil_scoped_release unlocked;
  return dtensor::redistribute(tensor, to, where);
}

void set_generator(const std::string& kind) {
  TESSERA_CHECK(kind == "counter" || kind == "stock", "[set_generator] \"", kind,
                "\"; accepted: \"counter\" and \"stock\"");
  dtensor::set_generator(kind == "stock" ? dtensor::GeneratorKind::kStock : dtensor::GeneratorKind::kCounter);
}

// A tensor that is no DTensor lacks these attributes, as hasattr says. Inside the derivatives of torch.func a tensor
// stands for one of the same dims, which answers; inside vmap for one that has a dim more.
const layout::Spec& spec_for(const at::Tensor& asked, const char* attribute) {
  const at::Tensor& tensor = dtensor::unwrapped(asked);
  if (!is_dtensor(tensor)) {
    throw py::attribute_error(std::string("a plain tensor has no `") + attribute + "`: it is no tessera.DTensor");
  }
  if (tensor.dim() != asked.dim()) {
    throw py::attribute_error(std::string("inside torch.func.vmap a tensor has no `") + attribute +
                              "`: it is one sample of a DTensor (" + dtensor::spec_of(tensor).str() +
                              ") whose dims count the mapped one too; ask outside of vmap");
  }
  return dtensor::spec_of(tensor);
}

// Of each chunk its offsets and its part.
std::vector<std::pair<std::vector<int64_t>, at::Tensor>> chunks(const at::Tensor& tensor) {
  std::vector<std::pair<std::vector<int64_t>, at::Tensor>> pairs;
  for (auto& [offsets, part] : dtensor::chunks_of(tensor)) {
    pairs.emplace_back(std::move(offsets), std::move(part));
  }
  return pairs;
}

// A Python function that nodes of the graph keep: whoever drops the last of them lets go of it.
std::shared_ptr<const py::function> shared_function(const py::function& function) {
  return {new py::function(function), [](const py::function* dropped) {
            const py::gil_scoped_acquire locked;
            delete dropped;
          }};
}

std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> body_of(const py::function& function) {
  return [shared = shared_function(function)](const std::vector<at::Tensor>& given) {
    const py::gil_scoped_acquire locked;
    return (*shared)(given).cast<std::vector<at::Tensor>>();
  };
}

std::vector<at::Tensor> recompute(const py::function& function, const std::vector<at::Tensor>& inputs,
                                  const std::vector<std::string>& keep, const std::vector<at::Tensor>& parameters) {
  const auto body = body_of(function);
  const py::gil_scoped_release unlocked;
  return dtensor::recompute(body, inputs, {.keep = keep, .parameters = parameters});
}

using PassableResults = std::optional<std::vector<at::Tensor>>;

PassableResults run_passable(dtensor::PassableBody& passable, uint64_t arguments, const std::vector<at::Tensor>& inputs,
                             const py::function& function) {
  const auto body = [&function](const std::vector<at::Tensor>& given) {
    const py::gil_scoped_acquire locked;
    return function(given).cast<PassableResults>();
  };
  const py::gil_scoped_release unlocked;
  return passable.run(arguments, inputs, body);
}

std::vector<at::Tensor> offload(const py::function& function, const std::vector<at::Tensor>& inputs) {
  const auto body = body_of(function);
  const py::gil_scoped_release unlocked;
  return dtensor::offload(body, inputs);
}

void set_numerics(const std::string& numerics, const std::string& lattice) {
  TESSERA_CHECK_AS(ConfigError, numerics == "fast" || numerics == "exact", "[numerics] \"", numerics,
                   "\"; accepted: exact, fast");
  dtensor::set_numerics(numerics == "exact" ? dtensor::Numerics::kExact : dtensor::Numerics::kFast,
                        lattice.empty() ? sums::Lattice() : sums::Lattice::parse(lattice));
}

bool is_exact() {
  const auto* state = dtensor::RankState::current();
  return state && state->exact.lattice();
}

// What the plan says of a placed parameter; None of others.
py::object plan_of(const at::Tensor& tensor) {
  const auto* info = dtensor::is_dtensor(tensor) ? dtensor::meta_of(tensor)->parameter : nullptr;
  return info ? py::object(py::capsule(info, "tessera.plan")) : py::none();
}

// A tensor that stands where a parameter stood of which that was said: the plan holds for it.
void keep_plan(const at::Tensor& tensor, const py::capsule& said) {
  if (dtensor::is_dtensor(tensor) && !dtensor::meta_of(tensor)->parameter) {
    dtensor::meta_of(tensor)->parameter = said.get_pointer<const dtensor::ParameterInfo>();
  }
}

dtensor::Mode mode_of(const std::string& name) {
  TESSERA_CHECK_AS(ConfigError, name == "implicit" || name == "explicit" || name == "warn", "[mode] \"", name,
                   "\"; accepted: implicit, explicit, warn");
  return name == "implicit"   ? dtensor::Mode::kImplicit
         : name == "explicit" ? dtensor::Mode::kExplicit
                              : dtensor::Mode::kWarn;
}

std::string set_mode(const std::string& name) {
  const auto before = dtensor::RankState::require().watch.set_mode(mode_of(name));
  return before == dtensor::Mode::kImplicit ? "implicit" : before == dtensor::Mode::kExplicit ? "explicit" : "warn";
}

}  // namespace

void bind_tensors(py::module_& module) {
  module.def("is_dtensor", [](const py::object& value) {
    return THPVariable_Check(value.ptr()) && is_dtensor(THPVariable_Unpack(value.ptr()));
  });
  module.def("distribute_tensor", &distribute);
  module.def("from_local", &from_local);
  module.def("redistribute", &redistribute);
  module.def("to_local", &dtensor::to_local, Unlocked());
  module.def("full_tensor", &dtensor::full_tensor, Unlocked());
  module.def("gather_to", &dtensor::gather_to, Unlocked());
  module.def("chunks", &chunks, Unlocked());
  module.def("to_string", &dtensor::to_string, Unlocked());
  module.def("deep_copy", &dtensor::deep_copy, Unlocked());
  module.def("to_region", &dtensor::to_region, Unlocked());
  module.def("recompute", &recompute);
  py::class_<dtensor::PassableBody>(module, "PassableBody")
      .def(py::init<std::vector<at::Tensor>>())
      .def("needs_run", &dtensor::PassableBody::needs_run)
      .def("run", &run_passable);
  module.def("offload", &offload);
  module.def("set_offload_folder", &dtensor::set_offload_folder);
  module.def("offloaded_bytes", &dtensor::offloaded_bytes);
  module.def("rng_state", &dtensor::rng_state, Unlocked());
  module.def("set_rng_state", &dtensor::set_rng_state, Unlocked());
  module.def("placements",
             [](const at::Tensor& tensor) { return py::tuple(py::cast(spec_for(tensor, "placements")->placements)); });
  module.def("device_mesh", [](const at::Tensor& tensor) { return spec_for(tensor, "device_mesh")->mesh; });
  module.def("layout", [](const at::Tensor& tensor) { return spec_for(tensor, "layout").str(); });
  module.def("manual_seed", [](uint64_t seed) { dtensor::manual_seed(seed); });
  module.def("set_generator", &set_generator);
  module.def("initial_seed", [] { return dtensor::RankState::require().random.seed(); });
  module.def("set_numerics", &set_numerics);
  module.def("is_noted", [](const at::Tensor& tensor) {
    return dtensor::RankState::require().is_noted(spec_for(tensor, "is_noted"));
  });
  module.def("is_exact", &is_exact, "Whether this rank computes in exact numerics.");
  module.def("plan_of", &plan_of);
  module.def("keep_plan", &keep_plan);
  module.def("set_mode", &set_mode);
  module.def("set_step_tokens", &dtensor::set_step_tokens);
  module.def("ledger", [] { return dtensor::RankState::require().ctx.ledger.json(); });
  module.def("set_check_plain", &dtensor::set_check_plain);
}

}  // namespace tessera::python
