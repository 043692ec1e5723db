// The parts of the extension module tessera._C, one for each file.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tessera::python {

namespace py = pybind11;

// Bodies that may wait for other ranks run without Python's lock.
using Unlocked = py::call_guard<py::gil_scoped_release>;

void bind_errors(py::module_& module);
void bind_layouts(py::module_& module);
void bind_tensors(py::module_& module);
void bind_ranks(py::module_& module);
void bind_models(py::module_& module);
void bind_checkpoints(py::module_& module);
void bind_optimizers(py::module_& module);
void bind_explain(py::module_& module);

}  // namespace tessera::python
