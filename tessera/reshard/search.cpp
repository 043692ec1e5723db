#include "tessera/reshard/search.h"

#include <algorithm>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::reshard::detail {

using layout::SpecData;

namespace {

// What a chain costs, in order of importance.
struct Cost {
  double bytes = 0;
  int64_t exchanges = 0;
  int64_t steps = 0;
  int64_t rounds = 0;

  bool operator<(const Cost& other) const {
    const double margin = 1e-9 * std::max(bytes, other.bytes);
    if (bytes < other.bytes - margin || other.bytes < bytes - margin) {
      return bytes < other.bytes;
    }
    return std::tie(exchanges, steps, rounds) < std::tie(other.exchanges, other.steps, other.rounds);
  }
};

int64_t rounds_of(StepKind kind, int64_t parts) {
  return is_local(kind) ? 0 : (kind == StepKind::kAllReduce ? 2 : 1) * (parts - 1);
}

// Whether two placements of an axis differ in more than their place in an order.
bool differ(const Placement& a, const Placement& b) {
  return a.kind != b.kind || a.op != b.op || a.dim != b.dim || a.stage != b.stage || a.places != b.places;
}

bool shares_dim(const Placements& placements, size_t axis, int64_t dim) {
  for (size_t b = 0; b < placements.size(); ++b) {
    if (b != axis && placements[b].is_shard(dim)) {
      return true;
    }
  }
  return false;
}

// Dijkstra over the placements that steps can reach: on each axis what it has, what it shall have, and Replicate.
class Search {
 public:
  Search(const SpecData& tensor, const Placements& from, const Placements& to) : tensor_(tensor), to_(to) {
    nodes_.push_back({.at = from});
    // An axis that is taken out of `to` must not change the order of the others.
    ordered_to_ = to;
    for (int64_t dim = 0; dim < tensor.ndim(); ++dim) {
      int8_t order = 0;
      for (int64_t axis : layout::axes_of_dim(tensor.mesh, to, dim)) {
        ordered_to_[axis].order = order++;
      }
    }
  }

  std::vector<Move> run() {
    while (true) {
      const size_t best = take_best();
      if (nodes_[best].at == to_) {
        return trace(best);
      }
      for (size_t axis = 0; axis < to_.size(); ++axis) {
        expand_axis(best, axis);
      }
      for (const JointChange& change : joint_changes(tensor_.mesh, nodes_[best].at, ordered_to_)) {
        expand_joint(best, change);
      }
      expand_exchange(best);
    }
  }

 private:
  struct Node {
    Placements at;
    Cost cost = {};
    size_t parent = 0;
    Move move = {};
    bool is_done = false;
  };

  size_t take_best() {
    size_t best = nodes_.size();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].is_done && (best == nodes_.size() || nodes_[i].cost < nodes_[best].cost)) {
        best = i;
      }
    }
    TESSERA_ASSERT(best < nodes_.size(), "no path to ", layout::str(tensor_.mesh, to_));
    nodes_[best].is_done = true;
    return best;
  }

  std::vector<Move> trace(size_t node) const {
    std::vector<Move> moves;
    for (; node != 0; node = nodes_[node].parent) {
      moves.push_back(nodes_[node].move);
    }
    std::reverse(moves.begin(), moves.end());
    return moves;
  }

  void expand_axis(size_t node, size_t axis) {
    const Placement now = nodes_[node].at[axis];
    const bool is_wanted = !differ(now, to_[axis]);
    if (!is_wanted) {
      try_change(node, axis, to_[axis]);
    }
    // Taking a cut away lets another axis of its dim move.
    const bool blocks =
        now.is_shard() && (shares_dim(nodes_[node].at, axis, now.dim) || shares_dim(to_, axis, now.dim));
    if (!now.is_replicate() && !to_[axis].is_replicate() && (!is_wanted || blocks)) {
      try_change(node, axis, layout::Replicate());
    }
  }

  void try_change(size_t node, size_t axis, const Placement& to) {
    const Placements& at = nodes_[node].at;
    const Change change = change_of(tensor_, at, static_cast<int64_t>(axis), to);
    if (const StepRule* rule = find_step(change)) {
      add(node,
          {rule,
           static_cast<int64_t>(axis),
           {},
           after_change(tensor_.mesh, at, static_cast<int64_t>(axis), to),
           rule->bytes(change)},
          change.parts);
    }
  }

  void expand_joint(size_t node, const JointChange& joint) {
    Placements after = nodes_[node].at;
    Change change = change_of(tensor_, after, joint.axes.front(), after[joint.axes.front()]);
    change.parts = 1;
    for (const int64_t axis : joint.axes) {
      change.parts *= tensor_.mesh.axes()[axis].size;
      if (after[axis].is_shard() && axis != joint.axes.front()) {
        change.line_bytes *= static_cast<double>(tensor_.mesh.axes()[axis].size);
      }
    }
    std::vector<int64_t> from_outside = joint.axes;  // as they come to cut
    std::stable_sort(from_outside.begin(), from_outside.end(),
                     [&](int64_t a, int64_t b) { return ordered_to_[a].order < ordered_to_[b].order; });
    for (const int64_t axis : from_outside) {
      after = after_change(tensor_.mesh, after, axis, to_[axis]);
    }
    const StepRule& rule = step_of(joint.kind);
    add(node, {&rule, -1, joint.axes, std::move(after), rule.bytes(change)}, change.parts);
  }

  // All cuts become those wanted, in one exchange. What is to be merged stays Partial; what shall be Partial waits.
  void expand_exchange(size_t node) {
    const Placements& at = nodes_[node].at;
    Placements after = ordered_to_;
    for (size_t a = 0; a < at.size(); ++a) {
      if (!at[a].is_settled()) {
        after[a] = at[a];
      } else if (!after[a].is_settled()) {
        after[a] = layout::Replicate();
      }
    }
    after = layout::normal_form(tensor_.mesh, after);
    const auto axes = exchange_axes(tensor_.mesh, at, after);
    if (axes.size() > 1) {
      int64_t ranks = 1;
      for (int64_t axis : axes) {
        ranks *= tensor_.mesh.axes()[axis].size;
      }
      const double bytes = exchange_bytes(tensor_, at, after);
      add(node, {nullptr, -1, {}, std::move(after), bytes}, ranks);
    }
  }

  void add(size_t parent, Move move, int64_t parts) {
    if (!layout::is_layout_of(tensor_.mesh, move.after, tensor_.sizes)) {
      return;
    }
    Cost cost = nodes_[parent].cost;
    cost.bytes += move.bytes;
    cost.exchanges += move.rule == nullptr;
    cost.steps += 1;
    cost.rounds += rounds_of(move.rule == nullptr ? StepKind::kExchange : move.rule->kind, parts);
    const auto same = [&](const Node& node) { return node.at == move.after; };
    auto node = std::find_if(nodes_.begin(), nodes_.end(), same);
    if (node == nodes_.end()) {
      Placements at = move.after;
      nodes_.push_back({std::move(at), cost, parent, std::move(move)});
    } else if (!node->is_done && cost < node->cost) {
      node->cost = cost;
      node->parent = parent;
      node->move = std::move(move);
    }
  }

  const SpecData& tensor_;
  const Placements& to_;
  Placements ordered_to_;
  std::vector<Node> nodes_;
};

}  // namespace

std::optional<Move> find_one_move(const SpecData& tensor, const Placements& from, const Placements& to) {
  int64_t axis = -1;
  for (size_t a = 0; a < from.size(); ++a) {
    if (differ(from[a], to[a])) {
      if (axis >= 0) {
        return std::nullopt;
      }
      axis = static_cast<int64_t>(a);
    }
  }
  if (axis < 0) {
    return std::nullopt;
  }
  const Change change = change_of(tensor, from, axis, to[axis]);
  const StepRule* rule = find_step(change);
  if (rule == nullptr) {
    return std::nullopt;
  }
  Move move{rule, axis, {}, after_change(tensor.mesh, from, axis, to[axis]), rule->bytes(change)};
  return move.after == to ? std::optional(std::move(move)) : std::nullopt;
}

std::vector<Move> search_moves(const SpecData& tensor, const Placements& from, const Placements& to) {
  if (from == to) {
    return {};
  }
  if (auto move = find_one_move(tensor, from, to)) {
    return {std::move(*move)};
  }
  return Search(tensor, from, to).run();
}

}  // namespace tessera::reshard::detail
