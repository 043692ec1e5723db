#include "tessera/sums/node_plan.h"

#include <algorithm>

namespace tessera::sums {

Node root_of(int64_t size, int64_t leaves) { return leaves_of({0, size}, size, leaves); }

std::vector<NodePlan::Run> runs_of(const layout::Range& held, int64_t size, int64_t leaves) {
  const int64_t leaf = leaf_unit(size, leaves);
  std::vector<NodePlan::Run> runs;
  for (const Node& node : cover(leaves_of(held, size, leaves), root_of(size, leaves).end)) {
    const int64_t begin = node.begin * leaf;
    runs.push_back({node, begin - held.begin, std::min(node.end * leaf, size) - begin});
  }
  return runs;
}

MergePlan plan_merge(const std::vector<Node>& members, const Node& root) {
  MergePlan::Nodes nodes;
  for (const Node& held : members) {
    nodes.push_back(cover(held, root.end));
  }
  return MergePlan(std::move(nodes), root);
}

}  // namespace tessera::sums
