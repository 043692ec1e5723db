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

// What is wrong with the cuts of `dim` that divide it into blocks or are at given places, or nothing. `axes` are those
// that cut it, slowest first.
std::string fault_of_cuts(const Mesh& mesh, PlacementsRef placements, int64_t dim, int64_t size, const AxisList& axes) {
  const Placement& slowest = placements[axes.front()];
  const std::string what = slowest.spans ? c10::str("dims 0 to ", dim, " together") : c10::str("dim ", dim);
  const int64_t blocks = slowest.blocks;
  if (size % blocks != 0) {
    return c10::str(slowest.str(), " of ", size, " elements: ", what, " cannot be ", blocks, " blocks of one size");
  }
  int64_t run = size / blocks;  // the longest that is left to an axis
  for (int64_t axis : axes) {
    const Placement& placement = placements[axis];
    const int64_t parts = mesh.axes()[axis].size;
    const bool fits = !placement.is_ragged() || (static_cast<int64_t>(placement.places.sizes().size()) == parts &&
                                                 placement.places.total() == run);
    if (!fits) {
      return c10::str(placement.str(), " on axis ", mesh.axes()[axis].name, " gives ", placement.places.total(),
                      " elements of ", what, " to ", placement.places.sizes().size(), " ranks; accepted: ", parts,
                      " sizes that add up to ", run);
    }
    run = placement.cut(run, parts).most();
  }
  return {};
}

// What is wrong with the placements of a tensor of these sizes, or nothing.
std::string fault_of(const Mesh& mesh, PlacementsRef placements, c10::IntArrayRef sizes) {
  const auto ndim = static_cast<int64_t>(sizes.size());
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
    if (!find_axes_of_dim(placements, placement.dim, axes)) {
      return c10::str("the axes that cut dim ", placement.dim,
                      " give no one order; accepted: each position once, or none");
    }
    for (size_t b = 0; b < placements.size(); ++b) {
      const Placement& other = placements[b];
      const bool share_dim = other.is_shard(placement.dim);
      if (share_dim && other.blocks != placement.blocks) {
        return c10::str(placement.str(), " and ", other.str(), " cut one dim; accepted: the same blocks");
      }
      if (placement.spans && other.is_shard() && other.dim <= placement.dim && !placement.shares_dim(other)) {
        return c10::str(placement.str(), " and ", other.str(),
                        " cut one dim; accepted: cuts of the same dims taken together");
      }
    }
    const int64_t size = sizes_in_runs(sizes, placement.spans ? placement.dim : 0)[placement.dim];
    const std::string fault =
        axes.front() == static_cast<int64_t>(a) ? fault_of_cuts(mesh, placements, placement.dim, size, axes) : "";
    if (!fault.empty()) {
      return fault;
    }
  }
  return {};
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

std::vector<int64_t> sizes_in_runs(c10::IntArrayRef sizes, int64_t last_spanned) {
  std::vector<int64_t> runs = sizes.vec();
  for (int64_t d = 0; d < last_spanned; ++d) {
    runs[last_spanned] *= std::exchange(runs[d], 1);
  }
  return runs;
}

int64_t SpecData::numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

int64_t SpecData::bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

bool SpecData::is_cut() const { return last_cut_dim(placements) >= 0; }

bool SpecData::is_cut(int64_t dim) const {
  return std::any_of(placements.begin(), placements.end(),
                     [&](const Placement& p) { return p.is_shard(dim) || (p.spans && dim < p.dim); });
}

std::vector<int64_t> SpecData::run_sizes() const { return sizes_in_runs(sizes, last_spanned_dim(placements)); }

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
    const std::string fault = fault_of(mesh, normal, sizes);
    TESSERA_CHECK(fault.empty(), "[layout] ", layout::str(mesh, placements), " on mesh {", mesh.str(), "}: ", fault);
    TESSERA_CHECK(sizes.size() == strides.size(), "[layout] ", sizes.size(), " sizes and ", strides.size(), " strides");
    verify_labels(labels, sizes);
    TESSERA_CHECK(last_spanned_dim(placements) == 0 || !batch_dim(labels), "[layout] ", layout::str(mesh, placements),
                  " takes dims together of a tensor of samples, ", layout::str(labels), "; accepted: cuts of one dim");
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

Spec Spec::with_dtype(c10::ScalarType dtype) const {
  return dtype == data_->dtype
             ? *this
             : make(data_->mesh, data_->placements, data_->sizes, data_->strides, dtype, data_->labels);
}

Spec Spec::with_labels(const Labels& labels) const {
  return make(data_->mesh, data_->placements, data_->sizes, data_->strides, data_->dtype, labels);
}

std::vector<Range> Spec::local_ranges(const Coord& coord) const {
  TESSERA_ASSERT(!data_->is_interleaved(), "the one run that a rank holds of ", str());
  return first_runs(coord);
}

std::vector<Range> Spec::first_runs(const Coord& coord) const {
  const std::vector<int64_t> sizes = data_->run_sizes();
  std::vector<Range> ranges(sizes.size());
  for (size_t d = 0; d < ranges.size(); ++d) {
    ranges[d] = local_range(data_->mesh, data_->placements, static_cast<int64_t>(d), sizes[d], coord);
  }
  return ranges;
}

std::vector<std::vector<Range>> Spec::local_runs(const Coord& coord) const {
  const std::vector<int64_t> blocks = blocks_of_dims(data_->placements, data_->ndim());
  const std::vector<Range> firsts = first_runs(coord);
  const std::vector<int64_t> sizes = data_->run_sizes();
  std::vector<std::vector<Range>> runs(firsts.size());
  for (size_t d = 0; d < runs.size(); ++d) {
    runs[d] = in_blocks(firsts[d], sizes[d], blocks[d]);
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

std::vector<int64_t> Spec::largest_sizes() const {
  std::vector<int64_t> sizes = blocks_of_dims(data_->placements, data_->ndim());
  const std::vector<int64_t> whole = data_->run_sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t run = whole[d] / sizes[d];
    for (int64_t axis : data_->axes_of(static_cast<int64_t>(d))) {
      run = data_->placements[axis].cut(run, data_->mesh.axes()[axis].size).most();
    }
    sizes[d] *= run;
  }
  return sizes;
}

Placements normal_form(const Mesh& mesh, const Placements& placements) {
  verify_count(mesh, placements);
  PlacementList normal(placements.begin(), placements.end());
  normalise(mesh, normal);
  return {normal.begin(), normal.end()};
}

bool is_layout_of(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes) {
  if (static_cast<int64_t>(placements.size()) != mesh.ndim()) {
    return false;
  }
  PlacementList normal(placements.begin(), placements.end());
  normalise(mesh, normal);
  return fault_of(mesh, normal, sizes).empty();
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
  verify_count(mesh, placements);
  TESSERA_CHECK(last_spanned_dim(placements) == 0, "[layout] the sizes of a tensor of which ranks hold parts of ",
                local, " as ", layout::str(mesh, placements), ", which takes dims together: give the global sizes");
  std::vector<int64_t> sizes = local.vec();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const std::vector<int64_t> axes = axes_of_dim(mesh, placements, static_cast<int64_t>(dim));
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      const Placement& cut = placements[*axis];
      sizes[dim] = cut.is_ragged() ? cut.places.total() * cut.blocks : sizes[dim] * mesh.axes()[*axis].size;
    }
  }
  return sizes;
}

}  // namespace tessera::layout
