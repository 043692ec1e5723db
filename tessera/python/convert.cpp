#include "tessera/python/convert.h"

#include "tessera/base/error.h"

namespace tessera::python {

layout::Placements placements_of(const layout::Mesh& mesh, const py::object& placements, int64_t ndim) {
  if (placements.is_none()) {
    return layout::Placements(static_cast<size_t>(mesh.ndim()));
  }
  if (py::isinstance<py::str>(placements)) {
    return layout::parse_placements(mesh, placements.cast<std::string>());
  }
  const std::string accepted =
      c10::str("accepted: one for each axis of mesh {", mesh.str(), "}, [tessera.Shard(0)], or text such as \"{",
               mesh.ndim() > 0 ? mesh.axis(0).name : "tp", ": S(0)}\"");
  layout::Placements list;
  try {
    list = py::isinstance<layout::Placement>(placements) ? layout::Placements{placements.cast<layout::Placement>()}
                                                         : placements.cast<layout::Placements>();
  } catch (const py::cast_error&) {
    TESSERA_CHECK(false, "[placements] ", py::repr(placements).cast<std::string>(), " are no placements; ", accepted);
  }
  TESSERA_CHECK(static_cast<int64_t>(list.size()) == mesh.ndim(), "[placements] ", list.size(),
                " placements for the axes of mesh {", mesh.str(), "}; ", accepted);
  return layout::with_dims(list, [&](int64_t dim) { return dim < 0 ? dim + ndim : dim; });
}

}  // namespace tessera::python
