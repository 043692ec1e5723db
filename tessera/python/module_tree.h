// A Python model as the planner sees models.
#pragma once

#include <vector>

#include "tessera/plan/module_tree.h"
#include "tessera/python/bind.h"

namespace tessera::python {

// Of a torch.nn.Module. Heads are read from the modules' own attributes, else from their `config`, under the names that
// transformers uses.
plan::ModuleTree describe(const py::object& module);

// What state_dict() has of a torch.nn.Module: parameters, and buffers that persist, each once.
std::vector<plan::NamedTensor> persistent_tensors(const py::object& module);

}  // namespace tessera::python
