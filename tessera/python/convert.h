// Python values as those of the floors below.
#pragma once

#include "tessera/layout/spec.h"
#include "tessera/python/bind.h"

namespace tessera::python {

// From `None` (all replicated), `"{tp: S(0)}"`, one Placement (for a mesh of one axis) or a sequence of them. Negative
// dims count from the end of a tensor of `ndim` dims.
layout::Placements placements_of(const layout::Mesh& mesh, const py::object& placements, int64_t ndim);

}  // namespace tessera::python
