// explain and the NaN finder.
#include "tessera/dtensor/watch/explain.h"
#include "tessera/dtensor/watch/find_nan.h"
#include "tessera/python/bind.h"

namespace tessera::python {
namespace {

using dtensor::Explain;
using dtensor::ExplainReport;
using dtensor::NanFinder;

// What Python's function `line` says, called from operators, which run without the lock. Freed with the lock.
dtensor::Places::Locate locate_by(const py::function& line) {
  const std::shared_ptr<py::function> kept(new py::function(line), [](py::function* function) {
    const py::gil_scoped_acquire locked;
    delete function;
  });
  return [kept] {
    const py::gil_scoped_acquire locked;
    try {
      return (*kept)().cast<std::string>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("tessera.explain");
      return std::string();
    }
  };
}

std::unique_ptr<Explain> make_explain(const py::function& line) {
  return std::make_unique<Explain>(dtensor::ExplainOptions{.locate = locate_by(line)});
}

std::unique_ptr<NanFinder> make_finder(bool throws, const py::function& line) {
  return std::make_unique<NanFinder>(dtensor::FindNanOptions{
      .action = throws ? dtensor::OnNan::kThrow : dtensor::OnNan::kReport, .locate = locate_by(line)});
}

std::optional<std::string> own_text(const NanFinder& finder) {
  return finder.own() ? std::optional(finder.own()->text()) : std::nullopt;
}

}  // namespace

void bind_explain(py::module_& module) {
  py::class_<Explain>(module, "Explain")
      .def(py::init(&make_explain))
      .def("enter", &Explain::enter)
      .def("leave", &Explain::leave)
      .def("stop", &Explain::stop)
      .def("text", [](const Explain& explain, size_t width) { return explain.report().text(width); })
      .def("json", [](const Explain& explain) { return explain.report().json(); });
  py::class_<NanFinder>(module, "NanFinder")
      .def(py::init(&make_finder))
      .def("enter", &NanFinder::enter)
      .def("leave", &NanFinder::leave)
      .def("stop", &NanFinder::stop)
      .def("own", &own_text)
      .def("first", &NanFinder::first, Unlocked());
}

}  // namespace tessera::python
