// The extension module tessera._C: names and conversions, no logic.
#include "tessera/base/hints.h"
#include "tessera/python/bind.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "What the package tessera is made of; import tessera instead.";
  module.attr("built_for") = TESSERA_TORCH_VERSION;
  tessera::base::set_language(tessera::base::Language::kPython);
  tessera::python::bind_errors(module);
  tessera::python::bind_layouts(module);
  tessera::python::bind_tensors(module);
  tessera::python::bind_ranks(module);
  tessera::python::bind_models(module);
  tessera::python::bind_checkpoints(module);
  tessera::python::bind_optimizers(module);
  tessera::python::bind_explain(module);
}
