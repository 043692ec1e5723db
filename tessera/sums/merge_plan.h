// The additions of a merge as index arithmetic: which sums of which members are added to which, in the order of one
// tree.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/sums/lattice.h"

namespace tessera::sums {

// How the nodes that the members of a group hold become the closed ones: neighbours that are the two children of a node
// of the tree over `root` are added, until none are left. A value, made once from what each member holds and run often.
class MergePlan {
 public:
  using Nodes = std::vector<std::vector<Node>>;  // by member, in the order of its sums

  // target = the balanced tree over 1, 2, 4 or 8 operands.
  struct Step {
    // A sum that a member brings, by its number when the sums of member 0 come first; or ~slot.
    std::array<int32_t, 8> operands = {};
    int32_t count = 0;
    int32_t target = 0;  // the number of a closed node; or ~slot
    bool operator==(const Step&) const = default;
  };

  // Throws if nodes overlap; where some are missing, more than one stays open.
  MergePlan(Nodes nodes, Node root);

  const Nodes& nodes() const { return nodes_; }
  const Node& root() const { return root_; }
  const std::vector<Node>& closed() const { return closed_; }  // in order
  const std::vector<Step>& steps() const { return steps_; }    // in an order that can be run
  int32_t slots() const { return slots_; }                     // that steps use between them

  // `[0,8) of [0,2) [2,4) | [4,8)`.
  std::string str() const;
  bool operator==(const MergePlan& other) const { return root_ == other.root_ && nodes_ == other.nodes_; }

 private:
  Nodes nodes_;
  Node root_;
  std::vector<Node> closed_;
  std::vector<Step> steps_;
  int32_t slots_ = 0;
};

// Closes what `items` (anything with a `node`) hold: `add(left, right)` adds the item right of `left` to it. They come
// back in order. Throws if nodes overlap.
template <typename Item, typename Add>
std::vector<Item> close_items(std::vector<Item> items, const Node& root, const Add& add);

// Whether two neighbours are the children of a node of the tree over `root`.
bool are_children(const Node& left, const Node& right, const Node& root);

// Throws, naming both.
void throw_overlap(const Node& a, const Node& b);

template <typename Item, typename Add>
std::vector<Item> close_items(std::vector<Item> items, const Node& root, const Add& add) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.node.begin < b.node.begin; });
  std::vector<Item> closed;
  for (Item& item : items) {
    if (!closed.empty() && closed.back().node.end > item.node.begin) {
      throw_overlap(closed.back().node, item.node);
    }
    closed.push_back(std::move(item));
    while (closed.size() > 1 && are_children(closed[closed.size() - 2].node, closed.back().node, root)) {
      Item right = std::move(closed.back());
      closed.pop_back();
      add(closed.back(), right);
      closed.back().node.end = right.node.end;
    }
  }
  return closed;
}

}  // namespace tessera::sums
