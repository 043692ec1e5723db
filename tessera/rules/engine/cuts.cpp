#include "tessera/rules/engine/cuts.h"

#include <c10/util/SmallVector.h>

namespace tessera::rules {

namespace {

struct CutPair {
  int64_t parts;
  int64_t unit_a;
  int64_t unit_b;
};

// Nested cuts, slowest first. A cut leaves full runs of one size and at most one shorter one.
bool agree(int64_t size, c10::ArrayRef<CutPair> cuts) {
  if (cuts.empty() || size == 0) {
    return true;
  }
  const CutPair& first = cuts.front();
  const int64_t step = layout::cut(size, first.parts, 0, first.unit_a).end;
  if (step != layout::cut(size, first.parts, 0, first.unit_b).end) {
    return false;
  }
  return agree(step, cuts.slice(1)) && agree(size % step, cuts.slice(1));
}

using Pairs = c10::SmallVector<CutPair, 4>;

}  // namespace

bool same_cuts(const layout::SpecData& spec, int64_t axis, const layout::Placement& other) {
  const int64_t dim = other.dim;
  if (spec.placements[axis].blocks != other.blocks) {
    return false;
  }
  if (spec.placements[axis].unit == other.unit) {
    return true;
  }
  Pairs cuts;
  for (int64_t a : layout::axes_of_dim(spec.mesh, spec.placements, dim)) {
    const int64_t unit = spec.placements[a].unit;
    cuts.push_back({spec.mesh.axis(a).size, unit, a == axis ? other.unit : unit});
  }
  return agree(spec.sizes[dim] / other.blocks, cuts);
}

bool same_layout(const layout::Spec& a, const layout::Spec& b) {
  if (a == b) {
    return true;
  }
  const auto& x = a->placements;
  const auto& y = b->placements;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].kind != y[i].kind || x[i].op != y[i].op || x[i].dim != y[i].dim || x[i].blocks != y[i].blocks) {
      return false;
    }
  }
  const std::vector<int64_t> blocks = layout::blocks_of_dims(x, a->ndim());
  for (int64_t dim = 0; dim < a->ndim(); ++dim) {
    const auto axes = layout::axes_of_dim(a->mesh, x, dim);
    if (axes != layout::axes_of_dim(b->mesh, y, dim)) {
      return false;
    }
    Pairs cuts;
    for (int64_t axis : axes) {
      cuts.push_back({a->mesh.axis(axis).size, x[axis].unit, y[axis].unit});
    }
    if (!agree(a->sizes[dim] / blocks[dim], cuts)) {
      return false;
    }
  }
  return true;
}

int64_t unit_on_factor(int64_t size, int64_t inner, int64_t parts, int64_t unit) {
  if (inner == 0 || unit % inner == 0) {
    return std::max<int64_t>(inner == 0 ? 1 : unit / inner, 1);
  }
  const int64_t step = layout::cut(size, parts, 0, unit).end;
  if (step == layout::cut(size, parts, 0, inner).end || step % inner != 0) {
    return 1;
  }
  return std::max<int64_t>(step / inner, 1);
}

}  // namespace tessera::rules
