// explain, the NaN finder and imagined memory.
#include "tessera/comm/core/compared_run.h"
#include "tessera/watch/call_line.h"
#include "tessera/watch/explain.h"
#include "tessera/watch/find_nan.h"
#include "tessera/watch/imagined.h"
#include "tessera/python/bind.h"

namespace tessera::python {
namespace {

using watch::Explain;
using watch::ExplainReport;
using watch::NanFinder;

// What Python's function `line` says, called from operators, which run without the lock. Freed with the lock.
watch::Places::Locate locate_by(const py::function& line) {
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
  return std::make_unique<Explain>(watch::ExplainOptions{.locate = locate_by(line)});
}

std::unique_ptr<NanFinder> make_finder(bool throws, const py::function& line) {
  return std::make_unique<NanFinder>(watch::FindNanOptions{
      .action = throws ? watch::OnNan::kThrow : watch::OnNan::kReport, .locate = locate_by(line)});
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
  module.def("is_compared", [] { return comm::compared_run() != nullptr; });
  module.def("set_call_locate", [](const py::function& line) { watch::set_call_locate(locate_by(line)); });
  py::class_<NanFinder>(module, "NanFinder")
      .def(py::init(&make_finder))
      .def("enter", &NanFinder::enter)
      .def("leave", &NanFinder::leave)
      .def("stop", &NanFinder::stop)
      .def("own", &own_text)
      .def("first", &NanFinder::first, Unlocked());
  py::class_<watch::Imagined>(module, "Imagined")
      .def(py::init())
      .def("peak", &watch::Imagined::peak)
      .def("reset_peak", &watch::Imagined::reset_peak);
  module.def("bytes_of_parts", &watch::bytes_of_parts, py::arg("tensors"));
}

}  // namespace tessera::python
