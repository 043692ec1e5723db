// Steps of our optimizers, running averages and learning rates.
#include "tessera/base/error.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/ema.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/state_file.h"
#include "tessera/optim/wholes.h"
#include "tessera/python/bind.h"

namespace tessera::python {
namespace {

using optim::Ema;
using optim::StateFile;
using optim::WarmupCosine;
using optim::WarmupStableDecay;
using optim::Wholes;
using Tensors = std::vector<at::Tensor>;
using Betas = std::tuple<double, double>;

void lion_step(const Tensors& parameters, const Tensors& gradients, const Tensors& averages, double lr,
               const Betas& betas, double weight_decay, bool maximize) {
  optim::lion_step(parameters, gradients, averages,
                   optim::LionOptions(lr).betas(betas).weight_decay(weight_decay).maximize(maximize));
}

std::vector<at::Tensor> make_state_8bit(const at::Tensor& parameter) {
  const optim::AdamW8bitParamState state = optim::make_state_8bit(parameter);
  return {state.exp_avg_codes(), state.exp_avg_scales(), state.exp_avg_sq_codes(), state.exp_avg_sq_scales()};
}

void adamw_8bit_step(const Tensors& parameters, const Tensors& gradients,
                     const std::vector<std::array<at::Tensor, 4>>& kept, const std::vector<int64_t>& steps, double lr,
                     const Betas& betas, double eps, double weight_decay, bool maximize) {
  std::vector<optim::AdamW8bitParamState> states(kept.size());
  std::vector<optim::AdamW8bitParamState*> pointers;
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto& [codes, scales, square_codes, square_scales] = kept[i];
    states[i].step(steps.at(i)), states[i].exp_avg_codes(codes), states[i].exp_avg_scales(scales);
    states[i].exp_avg_sq_codes(square_codes), states[i].exp_avg_sq_scales(square_scales);
    pointers.push_back(&states[i]);
  }
  optim::adamw_8bit_step(
      parameters, gradients, pointers,
      optim::AdamW8bitOptions(lr).betas(betas).eps(eps).weight_decay(weight_decay).maximize(maximize));
}

Wholes make_wholes(const std::string& over) {
  TESSERA_CHECK_AS(ConfigError, over == "cuts" || over == "mesh", "[owned] over=\"", over, "\"; accepted: cuts, mesh");
  return Wholes(over == "mesh" ? optim::OwnedOver::kMesh : optim::OwnedOver::kCuts);
}

at::Tensor from_owner(const Wholes& wholes, size_t place, const std::optional<at::Tensor>& kept,
                      const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return wholes.from_owner(place, kept.value_or(at::Tensor()), sizes, dtype);
}

std::vector<py::bytes> exchange(const Wholes& wholes, const std::string& own) {
  std::vector<std::string> all;
  {
    const py::gil_scoped_release unlocked;
    all = wholes.exchange(own);
  }
  return {all.begin(), all.end()};
}

// Entered and left on one thread.
class PlainScope {
 public:
  void enter() { scope_.emplace(); }
  void exit(const py::args&) { scope_.reset(); }

 private:
  std::optional<optim::PlainScope> scope_;
};

WarmupStableDecay make_wsd(double peak, double floor, int64_t warmup, int64_t decay, int64_t steps,
                           const std::string& fall) {
  TESSERA_CHECK_AS(ConfigError, fall == "linear" || fall == "root", "[WarmupStableDecay] fall=\"", fall,
                   "\"; accepted: linear, root");
  const auto kind = fall == "root" ? WarmupStableDecay::Fall::kRoot : WarmupStableDecay::Fall::kLinear;
  return {peak, floor, warmup, decay, steps, kind};
}

}  // namespace

void bind_optimizers(py::module_& module) {
  module.def("lion_step", &lion_step, Unlocked());
  module.def("make_state_8bit", &make_state_8bit, Unlocked());
  module.def("adamw_8bit_step", &adamw_8bit_step, Unlocked());

  py::class_<PlainScope>(module, "PlainScope")
      .def(py::init<>())
      .def("__enter__", &PlainScope::enter)
      .def("__exit__", &PlainScope::exit);
  py::class_<Wholes>(module, "Wholes")
      .def(py::init(&make_wholes))
      .def("plan", &Wholes::plan, Unlocked())
      .def("lend", &Wholes::lend, Unlocked())
      .def("take_back", &Wholes::take_back, Unlocked())
      .def("is_here", &Wholes::is_here)
      .def("to_owner", &Wholes::to_owner, Unlocked())
      .def("from_owner", &from_owner, Unlocked())
      .def("exchange", &exchange);

  py::class_<StateFile>(module, "StateFile")
      .def(py::init<std::string>(), Unlocked())
      .def("keep", &StateFile::keep, Unlocked())
      .def_property_readonly("bytes", &StateFile::bytes);

  py::class_<Ema>(module, "Ema")
      .def(py::init<Tensors, double>(), Unlocked())
      .def("update", &Ema::update, Unlocked())
      .def("swap", &Ema::swap, Unlocked())
      .def_property_readonly("averages", &Ema::averages);

  py::class_<WarmupCosine>(
      module, "WarmupCosine",
      "A linear rise to `peak` over `warmup` steps, then half a cosine down to `floor` at `steps`.")
      .def(py::init<double, double, int64_t, int64_t>(), py::kw_only(), py::arg("peak") = 1.0, py::arg("floor") = 0.0,
           py::arg("warmup") = 0, py::arg("steps"))
      .def("__call__", &WarmupCosine::operator());
  py::class_<WarmupStableDecay>(
      module, "WarmupStableDecay",
      "A linear rise to `peak` over `warmup` steps, `peak` until `decay` steps before `steps`, then a fall to `floor`.")
      .def(py::init(&make_wsd), py::kw_only(), py::arg("peak") = 1.0, py::arg("floor") = 0.0, py::arg("warmup") = 0,
           py::arg("decay"), py::arg("steps"), py::arg("fall") = "linear")
      .def("__call__", &WarmupStableDecay::operator());
}

}  // namespace tessera::python
