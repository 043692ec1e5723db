// Whether two layouts cut a tensor at the same places.
#include "tessera/layout/spec.h"

namespace tessera::layout {

bool same_cuts(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, int64_t axis,
               const Placement& other) {
  if (placements[axis].blocks != other.blocks || placements[axis].spans != other.spans) {
    return false;
  }
  if (placements[axis].places == other.places) {
    return true;
  }
  if (other.is_ragged()) {
    Placements changed = placements;
    changed[axis].places = other.places;
    if (!is_layout_of(mesh, changed, sizes)) {
      return false;
    }
  }
  std::vector<NestedCut> now, then;
  for (int64_t a : axes_of_dim(mesh, placements, other.dim)) {
    now.push_back({mesh.axis(a).size, placements[a].places});
    then.push_back({mesh.axis(a).size, a == axis ? other.places : placements[a].places});
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
    if (x[i].kind != y[i].kind || x[i].op != y[i].op || x[i].dim != y[i].dim || x[i].blocks != y[i].blocks ||
        x[i].spans != y[i].spans) {
      return false;
    }
  }
  const std::vector<int64_t> blocks = blocks_of_dims(x, a->ndim());
  const std::vector<int64_t> sizes = a->run_sizes();
  for (int64_t dim = 0; dim < a->ndim(); ++dim) {
    const auto axes = a->axes_of(dim);
    if (axes != b->axes_of(dim)) {
      return false;
    }
    std::vector<NestedCut> cuts_a, cuts_b;
    for (int64_t axis : axes) {
      cuts_a.push_back({a->mesh.axis(axis).size, x[axis].places});
      cuts_b.push_back({a->mesh.axis(axis).size, y[axis].places});
    }
    if (!same_places(sizes[dim] / blocks[dim], cuts_a, cuts_b)) {
      return false;
    }
  }
  return true;
}

}  // namespace tessera::layout
