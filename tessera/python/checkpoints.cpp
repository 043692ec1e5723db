// Checkpoints of programs that run their own loop, and files of others.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/catalogue/differences.h"
#include "tessera/checkpoint/format/safetensors_file.h"
#include "tessera/checkpoint/program/job.h"
#include "tessera/checkpoint/program/own_loop.h"
#include "tessera/checkpoint/ranks/by_one.h"
#include "tessera/checkpoint/ranks/save_gathered.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/place.h"
#include "tessera/python/bind.h"
#include "tessera/python/module_tree.h"

namespace tessera::python {
namespace {

using checkpoint::OpenCheckpoint;
using checkpoint::OwnLoop;
using Named = std::vector<std::pair<std::string, at::Tensor>>;
using NamedTensors = std::vector<plan::NamedTensor>;
using Shape = std::pair<at::ScalarType, std::vector<int64_t>>;
using Shapes = std::map<std::string, Shape>;

// Runs `body` as a rank: the one that this thread is, or else the only one of a job, which draws from libtorch's own
// stream as the program does.
template <typename Body>
void as_rank(Body body) {
  if (comm::RankContext::current()) {
    body();
    return;
  }
  const auto of_program = at::detail::getDefaultCPUGenerator();
  comm::run_ranks(1, [&](int64_t) {
    dtensor::manual_seed(of_program.current_seed());
    dtensor::set_generator(dtensor::GeneratorKind::kStock);
    dtensor::stock_generator().set_state(of_program.get_state());
    body();
    auto stream = at::detail::getDefaultCPUGenerator();
    stream.set_state(dtensor::stock_generator().get_state());
  });
}

// A save that is under way.
class SaveHandle {
 public:
  explicit SaveHandle(std::unique_ptr<checkpoint::Saving> saving) : saving_(std::move(saving)) {}
  SaveHandle(SaveHandle&&) = default;
  SaveHandle& operator=(SaveHandle&&) = delete;
  ~SaveHandle() {
    if (saving_ && PyGILState_Check()) {
      const py::gil_scoped_release unlocked;
      saving_.reset();
    }
  }

  const std::string& folder() const { return saving_->folder(); }
  void check() const { saving_->check(); }
  void finish() {
    as_rank([&] { saving_->finish(); });
  }
  void give_up() { saving_->give_up(); }

 private:
  std::unique_ptr<checkpoint::Saving> saving_;
};

SaveHandle start_save(const std::string& run, int64_t step, const NamedTensors& model, const Named& moments,
                      const catalogue::Values& values, bool in_slices, bool copies, int64_t keep,
                      const std::vector<std::pair<std::string, std::string>>& files) {
  std::unique_ptr<checkpoint::Saving> saving;
  as_rank([&] {
    saving = checkpoint::start_save(run, step, {model, moments, values},
                                    {.in_slices = in_slices, .copies = copies, .keep = keep, .files = files});
  });
  return SaveHandle(std::move(saving));
}

std::vector<std::string> remove_unfinished(const std::string& run) {
  std::vector<std::string> removed;
  as_rank([&] { removed = checkpoint::remove_unfinished(run); });
  return removed;
}

// A plain program draws from its own generator, whatever the checkpoint was saved with.
OpenCheckpoint open(const std::string& folder, bool allows_other_sums) {
  const bool is_plain = !comm::RankContext::current();
  std::optional<OpenCheckpoint> found;
  as_rank([&] { found = checkpoint::open_own_loop(folder, {allows_other_sums, allows_other_sums || is_plain}); });
  return std::move(*found);
}

// Of what an optimizer kept.
Shapes moments_of(const OpenCheckpoint& checkpoint) {
  Shapes shapes;
  for (const auto& entry : checkpoint.catalogue.entries()) {
    if (entry.role != catalogue::Role::kMoment) {
      continue;
    }
    shapes[entry.name] = {entry.spec->dtype, {entry.spec->sizes.begin(), entry.spec->sizes.end()}};
  }
  return shapes;
}

void verify(const OpenCheckpoint& checkpoint, const NamedTensors& model, const Named& moments, bool with_moments) {
  as_rank([&] { checkpoint::verify_fits(checkpoint, {model, moments, {}}, with_moments); });
}

int64_t load(const OpenCheckpoint& checkpoint, const NamedTensors& model, const Named& moments, bool with_moments) {
  int64_t step = 0;
  as_rank([&] { step = checkpoint::load(checkpoint, {model, moments, {}}, with_moments); });
  return step;
}

// Zeros of a sort that an optimizer keeps for a parameter, and that lie as it does; of no dims they are plain.
at::Tensor zeros_for(const at::Tensor& parameter, const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (!dtensor::is_dtensor(parameter) || sizes.empty()) {
    return at::zeros(sizes, at::TensorOptions().dtype(dtype));
  }
  auto state = parallel::deferred([&] { return at::zeros(sizes, at::TensorOptions().dtype(dtype)); });
  parallel::place_state(state, parameter);
  return state;
}

// A tensor for a moment of a checkpoint: on the mesh that it was saved on it lies as it did, else as its parameter.
at::Tensor empty_moment(const OpenCheckpoint& checkpoint, const std::string& name, const at::Tensor& parameter) {
  const auto& spec = checkpoint.catalogue.at(name).spec;
  const auto rank = comm::RankContext::current() ? comm::RankContext::current()->rank : -1;
  const auto coord = spec->mesh.coord_of(rank);
  if (!coord || !dtensor::is_dtensor(parameter) || dtensor::spec_of(parameter)->mesh != spec->mesh) {
    return zeros_for(parameter, {spec->sizes.begin(), spec->sizes.end()}, spec->dtype);
  }
  const auto part = at::zeros(spec.local_sizes(*coord), at::TensorOptions().dtype(spec->dtype));
  return dtensor::from_local(part, spec->mesh, spec->placements, spec->sizes);
}

void load_by_one(const std::vector<at::Tensor>& targets, const py::function& read) {
  const auto read_one = [&](size_t index) {
    const py::gil_scoped_acquire locked;
    return read(index).cast<at::Tensor>();
  };
  const py::gil_scoped_release unlocked;
  as_rank([&] { checkpoint::load_by_one(targets, read_one); });
}

catalogue::Entry entry_of(const std::string& name, const std::vector<std::string>& aliases, const Shape& shape) {
  return {name, aliases, catalogue::Role::kParameter, layout::Spec::contiguous({}, {}, shape.second, shape.first)};
}

// The name in `found` of each of the model's tensors. Throws DataError that names all that are missing, extra or of
// other sizes; dtypes of numbers with a point are cast.
std::vector<std::string> match(const NamedTensors& model, const Shapes& found, const std::string& source) {
  std::vector<catalogue::Entry> wanted, there;
  std::map<std::string, const plan::NamedTensor*> by_name;
  for (const auto& named : model) {
    wanted.push_back(entry_of(named.name, named.aliases, {named.tensor.scalar_type(), named.tensor.sizes().vec()}));
    by_name[named.name] = &named;
    for (const auto& alias : named.aliases) {
      by_name[alias] = &named;
    }
  }
  std::map<const plan::NamedTensor*, std::string> names;
  for (const auto& [name, shape] : found) {
    const auto own = by_name.find(name);
    if (own == by_name.end()) {
      there.push_back(entry_of(name, {}, shape));
    } else if (auto [at, is_first] = names.emplace(own->second, name); is_first) {
      const auto dtype = own->second->tensor.scalar_type();
      const bool is_cast = at::isFloatingType(dtype) && at::isFloatingType(shape.first);
      there.push_back(entry_of(name, {}, {is_cast ? dtype : shape.first, shape.second}));
    }
  }
  catalogue::verify_fits(catalogue::Catalogue(wanted), catalogue::Catalogue(there), source);
  std::vector<std::string> result;
  for (const auto& named : model) {
    result.push_back(names.at(&named));
  }
  return result;
}

Shapes shapes_in(const checkpoint::SafetensorsFile& file) {
  Shapes shapes;
  for (const auto& entry : file.header().entries) {
    shapes[entry.name] = {entry.dtype, entry.sizes};
  }
  return shapes;
}

void save_gathered(const std::string& path, const Named& tensors) {
  std::vector<checkpoint::NamedTensor> all;
  for (const auto& [name, tensor] : tensors) {
    all.push_back({name, tensor});
  }
  as_rank([&] { checkpoint::save_gathered(path, std::move(all), {{"format", "pt"}}); });
}

}  // namespace

void bind_checkpoints(py::module_& module) {
  py::class_<plan::NamedTensor>(module, "NamedTensor")
      .def_readonly("name", &plan::NamedTensor::name)
      .def_readonly("aliases", &plan::NamedTensor::aliases)
      .def_readonly("tensor", &plan::NamedTensor::tensor);
  module.def("persistent_tensors", &persistent_tensors);
  py::class_<SaveHandle>(module, "SaveHandle")
      .def_property_readonly("folder", &SaveHandle::folder)
      .def("check", &SaveHandle::check)
      .def("finish", &SaveHandle::finish, Unlocked())
      .def("give_up", &SaveHandle::give_up);
  module.def("start_save", &start_save, Unlocked());
  module.def("remove_unfinished", &remove_unfinished, Unlocked());
  py::class_<OpenCheckpoint>(module, "OpenCheckpoint")
      .def_readonly("folder", &OpenCheckpoint::folder)
      .def_property_readonly("values", [](const OpenCheckpoint& self) { return self.catalogue.values(); })
      .def_property_readonly("moments", &moments_of);
  module.def("open_checkpoint", &open, Unlocked());
  module.def("verify_checkpoint", &verify, Unlocked());
  module.def("load_checkpoint", &load, Unlocked());
  module.def("zeros_for", &zeros_for, Unlocked());
  module.def("empty_moment", &empty_moment, Unlocked());
  py::class_<checkpoint::SafetensorsFile>(module, "SafetensorsFile")
      .def(py::init<const std::string&>())
      .def_property_readonly("tensors", &shapes_in)
      .def("read", py::overload_cast<const std::string&>(&checkpoint::SafetensorsFile::read), Unlocked());
  module.def("match_names", &match);
  module.def("load_by_one", &load_by_one);
  module.def("save_gathered", &save_gathered, Unlocked());
}

}  // namespace tessera::python
