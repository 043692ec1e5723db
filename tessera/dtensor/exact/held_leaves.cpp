#include "tessera/dtensor/exact/held_leaves.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/sums/closed_nodes.h"

namespace tessera::dtensor {
namespace {

using layout::Coord;
using sums::Node;
using sums::SamplePlan;
using Samples = std::map<int64_t, std::set<int64_t>>;  // by leaf

void add_samples(Samples& held, const SamplePlan& plan, const layout::Origin* origin, const Coord& coord) {
  const layout::Range rows = plan.rows_at(coord);
  const auto pieces = plan.pieces_at(coord);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t sample = layout::sample_of_row(origin, row);
    for (const SamplePlan::Piece& piece : pieces) {
      held[sample / plan.leaves.sample_leaf * plan.leaves.sequence_leaves + piece.leaf].insert(sample);
    }
  }
}

bool is_in(int64_t leaf, const std::vector<Node>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [leaf](const Node& node) { return node.begin <= leaf && leaf < node.end; });
}

// Every place that differs from `coord` along some of the axes only.
std::vector<Coord> places_along(const layout::Mesh& mesh, const Coord& coord, const std::vector<int64_t>& axes) {
  std::vector<Coord> places = {coord};
  for (const int64_t axis : axes) {
    std::vector<Coord> more;
    for (Coord place : places) {
      for (place[axis] = 0; place[axis] < mesh.axis(axis).size; ++place[axis]) {
        more.push_back(place);
      }
    }
    places = std::move(more);
  }
  return places;
}

}  // namespace

std::vector<Node> HeldLeaves::nodes_at(Coord coord, const std::vector<int64_t>& merged, const Wanted& wanted) const {
  std::vector<Node> nodes;
  if (calls_.empty()) {
    return {};
  }
  const sums::TokenLeaves& leaves = calls_.front().first.leaves;
  for (const Coord& place : places_along(calls_.front().first.terms->mesh, coord, merged)) {
    Samples held;
    for (const auto& [plan, origin] : calls_) {
      add_samples(held, plan, origin, place);
    }
    for (const auto& [leaf, samples] : held) {
      const auto all = static_cast<size_t>(leaves.samples_of(leaf / leaves.sequence_leaves).size());
      if (!is_in(leaf, wanted.without) && (!wanted.complete_ones_only || samples.size() == all)) {
        nodes.push_back({leaf, leaf + 1});
      }
    }
  }
  return sums::closed_nodes(nodes, leaves.root);
}

}  // namespace tessera::dtensor
