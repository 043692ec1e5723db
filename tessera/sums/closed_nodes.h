// Which nodes of a tree some nodes close to, where nobody adds their sums.
#pragma once

#include <utility>
#include <vector>

#include "tessera/sums/merge_plan.h"

namespace tessera::sums {

// As close_items closes them, in order. Throws if nodes overlap.
inline std::vector<Node> closed_nodes(const std::vector<Node>& nodes, const Node& root) {
  struct Item {
    Node node;
  };
  std::vector<Item> items;
  for (const Node& node : nodes) {
    items.push_back({node});
  }
  std::vector<Node> closed;
  for (const Item& item : close_items(std::move(items), root, [](Item&, const Item&) {})) {
    closed.push_back(item.node);
  }
  return closed;
}

}  // namespace tessera::sums
