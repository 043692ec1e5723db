#include "tessera/layout/spec.h"

#include <algorithm>
#include <numeric>
#include <ostream>

#include <c10/util/SmallVector.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/layout/intern.h"

namespace tessera::layout {

namespace {

using AxisList = c10::SmallVector<int64_t, 8>;
using PlacementList = c10::SmallVector<Placement, 8>;
using PlacementsRef = c10::ArrayRef<Placement>;

// The axes that cut `dim`, slowest first, or nothing when their orders contradict.
bool find_axes_of_dim(PlacementsRef placements, int64_t dim, AxisList& axes) {
  axes.clear();
  bool is_explicit = false;
  bool is_mixed = false;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_shard(dim)) {
      (placements[a].order >= 0 ? is_explicit : is_mixed) = true;
      axes.push_back(static_cast<int64_t>(a));
    }
  }
  if (!is_explicit || axes.size() == 1) {
    return true;
  }
  const auto order = [&](int64_t axis) { return placements[axis].order; };
  if (!is_mixed) {
    std::stable_sort(axes.begin(), axes.end(), [&](int64_t a, int64_t b) { return order(a) < order(b); });
    return std::adjacent_find(axes.begin(), axes.end(), [&](int64_t a, int64_t b) { return order(a) == order(b); }) ==
           axes.end();
  }
  AxisList placed(axes.size(), -1);
  for (int64_t axis : axes) {
    if (order(axis) >= 0) {
      if (order(axis) >= static_cast<int64_t>(axes.size()) || placed[order(axis)] >= 0) {
        return false;
      }
      placed[order(axis)] = axis;
    }
  }
  auto free = placed.begin();
  for (int64_t axis : axes) {
    if (order(axis) < 0) {
      free = std::find(free, placed.end(), -1);
      *free = axis;
    }
  }
  axes = placed;
  return true;
}

// Writes the normal form of the orders of the axes that cut the dim of axis `first`.
void normalise_orders(PlacementList& placements, size_t first) {
  AxisList axes;
  if (!find_axes_of_dim(placements, placements[first].dim, axes)) {
    return;
  }
  const bool in_mesh_order = std::is_sorted(axes.begin(), axes.end());
  for (size_t i = 0; i < axes.size(); ++i) {
    placements[axes[i]].order = static_cast<int8_t>(in_mesh_order ? -1 : static_cast<int>(i));
  }
}

void normalise(const Mesh& mesh, PlacementList& placements) {
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].order >= 0) {
      normalise_orders(placements, a);
    }
  }
  bool has_dropped = false;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (mesh.axes()[a].size == 1) {
      placements[a] = Replicate();
      has_dropped = true;
    }
  }
  for (size_t a = 0; has_dropped && a < placements.size(); ++a) {
    if (placements[a].order >= 0) {
      normalise_orders(placements, a);
    }
  }
}

// What is wrong with the placements of a tensor of `ndim` dims, or nothing.
std::string fault_of(const Mesh& mesh, PlacementsRef placements, int64_t ndim) {
  std::optional<ReduceOp> op;
  AxisList axes;
  for (size_t a = 0; a < placements.size(); ++a) {
    const Placement& placement = placements[a];
    if (placement.is_on() && placement.coordinate() >= mesh.axes()[a].size) {
      return c10::str(placement.str(), " on axis ", mesh.axes()[a].name, " of ", mesh.axes()[a].size,
                      " ranks; accepted: On(0) to On(", mesh.axes()[a].size - 1, ")");
    }
    if (placement.is_partial()) {
      if (op && !commute(*op, placement.op)) {
        return c10::str("P(", name_of(*op), ") and P(", name_of(placement.op),
                        ") do not commute: merge one of them first");
      }
      op = placement.op;
    }
    if (!placement.is_shard()) {
      continue;
    }
    if (placement.dim < 0 || placement.dim >= ndim) {
      return c10::str(placement.str(), " on a tensor of ", ndim, " dims; accepted: dims 0 to ", ndim - 1);
    }
    if (placement.unit < 1) {
      return c10::str(placement.str(), ": the unit must be at least 1");
    }
    if (!find_axes_of_dim(placements, placement.dim, axes)) {
      return c10::str("the axes that cut dim ", placement.dim,
                      " give no one order; accepted: each position once, or none");
    }
    for (int64_t axis : axes) {
      if (placements[axis].blocks != placement.blocks) {
        return c10::str(placement.str(), " and ", placements[axis].str(), " cut one dim; accepted: the same blocks");
      }
    }
  }
  return {};
}

void verify_blocks(PlacementsRef placements, c10::IntArrayRef sizes) {
  for (const Placement& placement : placements) {
    TESSERA_CHECK(!placement.is_interleaved() || sizes[placement.dim] % placement.blocks == 0, "[layout] ",
                  placement.str(), " of sizes ", sizes, ": dim ", placement.dim, " is not ",
                  static_cast<int>(placement.blocks), " blocks of one size");
  }
}

void verify_count(const Mesh& mesh, const Placements& placements) {
  TESSERA_CHECK(static_cast<int64_t>(placements.size()) == mesh.ndim(), "[layout] ", placements.size(), " placements (",
                base::join(placements, ", ", [](std::ostream& out, const Placement& p) { out << p.str(); }),
                ") for mesh {", mesh.str(), "}; accepted: one for each axis");
}

// What a Spec is looked up by.
struct Key {
  const Mesh& mesh;
  PlacementsRef placements;
  c10::IntArrayRef sizes;
  c10::IntArrayRef strides;
  c10::ScalarType dtype;
  const Labels& labels;

  uint64_t hash() const {
    uint64_t hash = base::hash_combine(mesh.hash(), static_cast<uint64_t>(dtype));
    for (const Placement& p : placements) {
      hash = base::hash_combine(hash, p.hash());
    }
    hash = base::hash_range(strides, base::hash_range(sizes, hash));
    for (const DimLabels& dim : labels) {
      for (const Factor& f : dim) {
        hash = base::hash_combine(hash, static_cast<uint64_t>(f.label) | static_cast<uint64_t>(f.extent) << 8);
        hash = base::hash_combine(hash, static_cast<uint64_t>(f.offset) ^ static_cast<uint64_t>(f.total) << 32);
        hash = base::hash_combine(hash, static_cast<uint64_t>(f.unit));
      }
      hash = base::hash_combine(hash, dim.size());
    }
    return hash;
  }

  bool equals(const SpecData& data) const {
    return data.mesh == mesh && data.dtype == dtype && placements == PlacementsRef(data.placements) &&
           sizes == c10::IntArrayRef(data.sizes) && strides == c10::IntArrayRef(data.strides) && data.labels == labels;
  }

  // The placements must be valid.
  const Layout* layout() const {
    static auto& table = *new detail::InternTable<Layout>;
    uint64_t hash = mesh.hash();
    for (const Placement& p : placements) {
      hash = base::hash_combine(hash, p.hash());
    }
    const auto equals = [&](const Layout& known) {
      return known.mesh == mesh && placements == PlacementsRef(known.placements);
    };
    return table.find_or_make(hash, equals, [&] { return Layout{mesh, placements.vec()}; });
  }

  SpecData make(uint64_t hash) const {
    SpecData data{.mesh = mesh,
                  .placements = placements.vec(),
                  .sizes = sizes.vec(),
                  .strides = strides.vec(),
                  .dtype = dtype,
                  .labels = labels,
                  .hash = hash,
                  .layout = layout(),
                  .holders = {}};
    data.has_partial = layout::has_partial(data.placements);
    data.is_everywhere =
        std::none_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_on(); });
    data.is_replicated =
        std::all_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_replicate(); });
    return data;
  }
};

detail::InternTable<SpecData>& records() {
  static auto& table = *new detail::InternTable<SpecData>;
  return table;
}

void verify_labels(const Labels& labels, c10::IntArrayRef sizes) {
  TESSERA_CHECK(labels.empty() || labels.size() == sizes.size(), "[layout] labels ", str(labels), " for a tensor of ",
                sizes.size(), " dims");
  for (size_t d = 0; d < labels.size(); ++d) {
    int64_t extent = 1;
    for (const Factor& factor : labels[d]) {
      extent *= factor.extent;
    }
    TESSERA_CHECK(labels[d].empty() || extent == sizes[d], "[layout] labels ", str(labels), " for sizes ", sizes,
                  ": the factors of dim ", d, " hold ", extent, " indices");
  }
}

}  // namespace

int64_t SpecData::numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

int64_t SpecData::bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

bool SpecData::is_cut() const { return last_cut_dim(placements) >= 0; }

bool SpecData::is_cut(int64_t dim) const {
  return std::any_of(placements.begin(), placements.end(), [&](const Placement& p) { return p.is_shard(dim); });
}

bool SpecData::is_interleaved() const {
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_interleaved(); });
}

int64_t SpecData::blocks_of(int64_t dim) const { return blocks_of_dims(placements, ndim())[dim]; }

std::vector<int64_t> SpecData::axes_of(int64_t dim) const { return axes_of_dim(mesh, placements, dim); }

bool SpecData::is_merged_by(std::initializer_list<ReduceOp> ops) const {
  return std::any_of(placements.begin(), placements.end(), [&](const Placement& p) {
    return p.is_partial() && std::find(ops.begin(), ops.end(), p.op) != ops.end();
  });
}

bool SpecData::holds(const Coord& coord) const {
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].holds(coord[axis])) {
      return false;
    }
  }
  return true;
}

bool SpecData::is_first_holder(const Coord& coord) const {
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_first(coord[axis])) {
      return false;
    }
  }
  return true;
}

Spec Spec::make(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                c10::ScalarType dtype, const Labels& labels) {
  verify_count(mesh, placements);
  if (!is_normal_labels(labels)) {
    return make(mesh, placements, sizes, strides, dtype, normal_labels(labels));
  }
  PlacementList normal(placements.begin(), placements.end());
  normalise(mesh, normal);
  const Key key{mesh, normal, sizes, strides, dtype, labels};
  const uint64_t hash = key.hash();
  const auto equals = [&](const SpecData& data) { return key.equals(data); };
  const auto make_record = [&] {
    const std::string fault = fault_of(mesh, normal, static_cast<int64_t>(sizes.size()));
    TESSERA_CHECK(fault.empty(), "[layout] ", layout::str(mesh, placements), " on mesh {", mesh.str(), "}: ", fault);
    TESSERA_CHECK(sizes.size() == strides.size(), "[layout] ", sizes.size(), " sizes and ", strides.size(), " strides");
    verify_blocks(normal, sizes);
    verify_labels(labels, sizes);
    return key.make(hash);
  };
  return Spec(records().find_or_make(hash, equals, make_record, [](const SpecData& data) { data.holders.add(); }));
}

void Spec::release() {
  const uint64_t hash = data_->hash;  // another thread may destroy it as soon as it is let go
  if (data_->holders.remove()) {
    records().erase(hash, data_, [](const SpecData& data) { return data.holders.is_unused(); });
  }
}

size_t Spec::count() { return records().size(); }

Spec Spec::contiguous(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, c10::ScalarType dtype,
                      const Labels& labels) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return make(mesh, placements, sizes, strides, dtype, labels);
}

Spec Spec::with(const Placements& placements) const {
  return make(data_->mesh, placements, data_->sizes, data_->strides, data_->dtype, data_->labels);
}

Spec Spec::with_labels(const Labels& labels) const {
  return make(data_->mesh, data_->placements, data_->sizes, data_->strides, data_->dtype, labels);
}

std::vector<Range> Spec::local_ranges(const Coord& coord) const {
  TESSERA_ASSERT(!data_->is_interleaved(), "the one run that a rank holds of ", str());
  return first_runs(coord);
}

std::vector<Range> Spec::first_runs(const Coord& coord) const {
  std::vector<Range> ranges(data_->sizes.size());
  for (size_t d = 0; d < ranges.size(); ++d) {
    ranges[d] = local_range(data_->mesh, data_->placements, static_cast<int64_t>(d), data_->sizes[d], coord);
  }
  return ranges;
}

std::vector<std::vector<Range>> Spec::local_runs(const Coord& coord) const {
  const std::vector<int64_t> blocks = blocks_of_dims(data_->placements, data_->ndim());
  const std::vector<Range> firsts = first_runs(coord);
  std::vector<std::vector<Range>> runs(firsts.size());
  for (size_t d = 0; d < runs.size(); ++d) {
    runs[d] = in_blocks(firsts[d], data_->sizes[d], blocks[d]);
  }
  return runs;
}

std::vector<int64_t> Spec::local_sizes(const Coord& coord) const {
  if (!data_->is_everywhere && !data_->holds(coord)) {
    return {0};
  }
  std::vector<int64_t> sizes = blocks_of_dims(data_->placements, data_->ndim());
  const std::vector<Range> firsts = first_runs(coord);
  for (size_t d = 0; d < sizes.size(); ++d) {
    sizes[d] *= firsts[d].size();
  }
  return sizes;
}

Placements normal_form(const Mesh& mesh, const Placements& placements) {
  verify_count(mesh, placements);
  PlacementList normal(placements.begin(), placements.end());
  normalise(mesh, normal);
  return {normal.begin(), normal.end()};
}

bool is_valid(const Mesh& mesh, const Placements& placements, int64_t ndim) {
  if (static_cast<int64_t>(placements.size()) != mesh.ndim()) {
    return false;
  }
  PlacementList normal(placements.begin(), placements.end());
  normalise(mesh, normal);
  return fault_of(mesh, normal, ndim).empty();
}

std::vector<int64_t> blocks_of_dims(const Placements& placements, int64_t ndim) {
  std::vector<int64_t> blocks(ndim, 1);
  for (const Placement& placement : placements) {
    if (placement.is_shard()) {
      blocks[placement.dim] = placement.blocks;
    }
  }
  return blocks;
}

Spec unfolded(const Spec& spec, c10::IntArrayRef blocks) {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::vector<int32_t> dims;
  for (size_t d = 0; d < blocks.size(); ++d) {
    const int64_t size = spec->sizes[d] / blocks[d];
    if (blocks[d] > 1) {
      sizes.push_back(blocks[d]);
      strides.push_back(spec->strides[d] * size);
    }
    dims.push_back(static_cast<int32_t>(sizes.size()));
    sizes.push_back(size);
    strides.push_back(spec->strides[d]);
  }
  Placements placements = spec->placements;
  for (Placement& placement : placements) {
    if (placement.is_shard()) {
      TESSERA_ASSERT(placement.blocks == blocks[placement.dim], spec.str(), " in blocks ", blocks);
      placement.dim = dims[placement.dim];
      placement.blocks = 1;
    }
  }
  return Spec::make(spec->mesh, placements, sizes, strides, spec->dtype);
}

std::vector<int64_t> axes_of_dim(const Mesh& mesh, const Placements& placements, int64_t dim) {
  AxisList axes;
  TESSERA_CHECK(find_axes_of_dim(placements, dim, axes), "[layout] ", str(mesh, placements), " on mesh {", mesh.str(),
                "}: the axes that cut dim ", dim, " give no one order");
  return {axes.begin(), axes.end()};
}

Range local_range(const Mesh& mesh, const Placements& placements, int64_t dim, int64_t size, const Coord& coord) {
  AxisList axes;
  TESSERA_CHECK(find_axes_of_dim(placements, dim, axes), "[layout] ", str(mesh, placements), " on mesh {", mesh.str(),
                "}: the axes that cut dim ", dim, " give no one order");
  Range range{0, axes.empty() ? size : size / placements[axes.front()].blocks};
  for (int64_t axis : axes) {
    const Range part = placements[axis].cut(range.size(), mesh.axes()[axis].size)[coord[axis]];
    range = {range.begin + part.begin, range.begin + part.end};
  }
  return range;
}

std::vector<int64_t> sizes_of_equal_parts(const Mesh& mesh, const Placements& placements, c10::IntArrayRef local) {
  std::vector<int64_t> sizes = local.vec();
  for (size_t axis = 0; axis < std::min(placements.size(), mesh.axes().size()); ++axis) {
    const Placement& placement = placements[axis];
    if (placement.is_shard() && placement.dim < static_cast<int64_t>(sizes.size())) {
      sizes[placement.dim] *= mesh.axes()[axis].size;
    }
  }
  return sizes;
}

bool same_cuts(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, int64_t axis,
               const Placement& other) {
  if (placements[axis].blocks != other.blocks) {
    return false;
  }
  if (placements[axis].unit == other.unit) {
    return true;
  }
  std::vector<NestedCut> now, then;
  for (int64_t a : axes_of_dim(mesh, placements, other.dim)) {
    now.push_back({mesh.axis(a).size, placements[a].unit});
    then.push_back({mesh.axis(a).size, a == axis ? other.unit : placements[a].unit});
  }
  return same_places(sizes[other.dim] / other.blocks, now, then);
}

bool same_layout(const Spec& a, const Spec& b) {
  if (a == b) {
    return true;
  }
  const Placements& x = a->placements;
  const Placements& y = b->placements;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].kind != y[i].kind || x[i].op != y[i].op || x[i].dim != y[i].dim || x[i].blocks != y[i].blocks) {
      return false;
    }
  }
  const std::vector<int64_t> blocks = blocks_of_dims(x, a->ndim());
  for (int64_t dim = 0; dim < a->ndim(); ++dim) {
    const auto axes = a->axes_of(dim);
    if (axes != b->axes_of(dim)) {
      return false;
    }
    std::vector<NestedCut> cuts_a, cuts_b;
    for (int64_t axis : axes) {
      cuts_a.push_back({a->mesh.axis(axis).size, x[axis].unit});
      cuts_b.push_back({a->mesh.axis(axis).size, y[axis].unit});
    }
    if (!same_places(a->sizes[dim] / blocks[dim], cuts_a, cuts_b)) {
      return false;
    }
  }
  return true;
}

}  // namespace tessera::layout
