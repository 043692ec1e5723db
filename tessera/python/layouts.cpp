// Mesh and Placement.
#include <pybind11/operators.h>

#include "tessera/comm/core/compared_run.h"
#include "tessera/comm/core/context.h"
#include "tessera/sums/lattice.h"
#include "tessera/layout/spec.h"
#include "tessera/python/bind.h"

namespace tessera::python {
namespace {

using layout::Mesh;
using layout::Placement;

std::vector<int64_t> shape_of(const Mesh& mesh) {
  std::vector<int64_t> shape;
  for (const auto& axis : mesh.axes()) {
    shape.push_back(axis.size);
  }
  return shape;
}

std::vector<std::string> names_of(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const auto& axis : mesh.axes()) {
    names.push_back(axis.name);
  }
  return names;
}

int64_t axis_of(const Mesh& mesh, const py::object& dim) {
  return py::isinstance<py::str>(dim) ? mesh.axis_index(dim.cast<std::string>()) : dim.cast<int64_t>();
}

py::object local_rank(const Mesh& mesh, const py::object& dim) {
  const auto coord = mesh.coord_of(comm::RankContext::require().rank);
  return coord ? py::cast(coord->at(static_cast<size_t>(axis_of(mesh, dim)))) : py::none();
}

Mesh submesh(const Mesh& mesh, const py::object& names) {
  const auto list = py::isinstance<py::str>(names) ? std::vector<std::string>{names.cast<std::string>()}
                                                   : names.cast<std::vector<std::string>>();
  return mesh.submesh(list, comm::RankContext::require().rank);
}

void bind_mesh(py::module_& module) {
  py::class_<Mesh>(module, "Mesh", "Named axes over ranks, the last varying fastest. A value: `Mesh('dp=2,tp=2')`.")
      .def(py::init([](const std::string& text) { return comm::mesh_for(Mesh::parse(text)); }), py::arg("text"))
      .def(py::init(
               [](const std::vector<std::pair<std::string, int64_t>>& axes, std::optional<std::vector<int64_t>> ranks) {
                 std::vector<layout::Axis> all;
                 for (const auto& [name, size] : axes) {
                   all.push_back({name, size});
                 }
                 return ranks ? Mesh(std::move(all), std::move(*ranks)) : comm::mesh_for(Mesh(all));
               }),
           py::arg("axes"), py::arg("ranks") = py::none())
      .def_property_readonly("ndim", &Mesh::ndim, "How many axes.")
      .def_property_readonly(
          "shape", [](const Mesh& mesh) { return py::tuple(py::cast(shape_of(mesh))); }, "The sizes of the axes.")
      .def_property_readonly(
          "mesh_dim_names", [](const Mesh& mesh) { return py::tuple(py::cast(names_of(mesh))); },
          "The names of the axes.")
      .def_property_readonly("ranks", &Mesh::ranks, "The ranks, row-major over the axes.")
      .def_property_readonly(
          "device_type", [](const Mesh&) { return "cpu"; }, "The kind of device.")
      .def(
          "size",
          [](const Mesh& mesh, const py::object& dim) {
            return dim.is_none() ? mesh.size() : mesh.axis(axis_of(mesh, dim)).size;
          },
          py::arg("mesh_dim") = py::none(), "How many ranks it has, or one axis of it.")
      .def(
          "get_rank", [](const Mesh&) { return comm::RankContext::require().rank; }, "The calling rank, in the job.")
      .def("get_local_rank", &local_rank, py::arg("mesh_dim") = 0,
           "Where the calling rank stands on an axis; None: not on this mesh.")
      .def(
          "get_coordinate", [](const Mesh& mesh) { return mesh.coord_of(comm::RankContext::require().rank); },
          "Where the calling rank stands on every axis; None: not on this mesh.")
      .def("flatten", &Mesh::flatten, py::arg("axes"), py::arg("name"),
           "The mesh with the named axes merged into one, the first of them slowest.")
      .def("__getitem__", &submesh, "The mesh of the named axes through the calling rank.")
      .def("__len__", &Mesh::size)
      .def("__copy__", [](const Mesh& mesh) { return mesh; })
      .def("__deepcopy__", [](const Mesh& mesh, const py::dict&) { return mesh; })
      .def(py::self == py::self)
      .def("__hash__", [](const Mesh& mesh) { return static_cast<int64_t>(mesh.hash() >> 1); })
      .def("__repr__", [](const Mesh& mesh) { return "Mesh('" + mesh.str() + "')"; });
}

// A negative dim counts from the end; it is resolved where the tensor is known.
Placement shard(int64_t dim, int64_t unit, int order, int64_t blocks) {
  Placement placement = layout::Shard(std::max<int64_t>(dim, 0), {.unit = unit, .order = order, .blocks = blocks});
  placement.dim = static_cast<int32_t>(dim);
  return placement;
}

Placement ragged_shard(const std::vector<int64_t>& dims, const std::vector<int64_t>& sizes, int order, int64_t blocks) {
  const bool counts_from_end = dims.size() == 1 && dims[0] < 0;
  Placement placement =
      layout::RaggedShard(counts_from_end ? std::vector<int64_t>{0} : dims, sizes, {.order = order, .blocks = blocks});
  placement.dim = static_cast<int32_t>(dims.back());
  return placement;
}

layout::ReduceOp reduce_op(const std::string& name) {
  using layout::ReduceOp;
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd, ReduceOp::kAvg}) {
    if (name == layout::name_of(op)) {
      return op;
    }
  }
  throw py::value_error("Partial(\"" + name + "\"): accepted are sum, max, min, prod and avg");
}

void bind_placements(py::module_& module) {
  py::class_<Placement>(module, "Placement",
                        "What one mesh axis does to a tensor. Made by Shard(dim), RaggedShard(dims, sizes), "
                        "Replicate(), Partial(op) and On(coordinate).")
      .def_property_readonly("kind", &Placement::kind_name,
                             "shard, interleaved shard, ragged shard, spanning shard, replicate, partial or on.")
      .def_property_readonly(
          "dim", [](const Placement& p) { return p.is_shard() ? py::cast(p.dim) : py::none(); },
          "The dim that a Shard cuts, or the last of those that it takes together; or None.")
      .def_property_readonly(
          "unit", [](const Placement& p) { return p.is_shard() ? py::cast(p.places.unit()) : py::none(); },
          "What a Shard cuts on multiples of, or None.")
      .def_property_readonly(
          "sizes",
          [](const Placement& p) {
            return p.is_ragged() ? py::object(py::tuple(py::cast(p.places.sizes()))) : py::none();
          },
          "How many elements of the dim a RaggedShard gives to each rank of the axis, or None.")
      .def_property_readonly(
          "blocks", [](const Placement& p) { return p.is_shard() ? py::cast(static_cast<int>(p.blocks)) : py::none(); },
          "How many blocks a Shard cuts alike (1 unless it is interleaved), or None.")
      .def_property_readonly(
          "coordinate", [](const Placement& p) { return p.is_on() ? py::cast(p.coordinate()) : py::none(); },
          "Where on the axis an On is, or None.")
      .def_property_readonly(
          "reduce_op", [](const Placement& p) { return p.is_partial() ? py::cast(layout::name_of(p.op)) : py::none(); },
          "How the ranks' values of a Partial combine, or None.")
      .def(
          "is_shard",
          [](const Placement& p, std::optional<int32_t> dim) { return dim ? p.is_shard(*dim) : p.is_shard(); },
          py::arg("dim") = py::none(), "Whether it cuts a dim, or the given one.")
      .def("is_replicate", &Placement::is_replicate, "Whether every rank holds the whole tensor.")
      .def("is_partial", &Placement::is_partial, "Whether the ranks' values have yet to be combined.")
      .def(py::self == py::self)
      .def("__hash__", [](const Placement& p) { return static_cast<int64_t>(p.hash() >> 1); })
      .def("__repr__", &Placement::str);
  module.def("shard", &shard);
  module.def("ragged_shard", &ragged_shard);
  module.def("replicate", &layout::Replicate);
  module.def("on", [](int64_t coordinate, std::optional<int64_t> stage) {
    return layout::On(coordinate, stage.value_or(coordinate));
  });
  module.def("partial", [](const std::string& op) { return layout::Partial(reduce_op(op)); });
  module.def("parse_placements", &layout::parse_placements);
}

}  // namespace

void bind_layouts(py::module_& module) {
  bind_mesh(module);
  bind_placements(module);
}

}  // namespace tessera::python
