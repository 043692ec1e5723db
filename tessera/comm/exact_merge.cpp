#include "tessera/comm/exact_merge.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "tessera/base/error.h"

namespace tessera::comm {

namespace {

using layout::Node;

constexpr int64_t kSmallBytes = 64 << 10;

bool are_children(const Node& left, const Node& right, const Node& root) {
  const Node parent{left.begin, right.end};
  return left.end == right.begin && left.begin + layout::left_size(parent.size()) == left.end && layout::is_node_of(parent, root);
}

// What a member sends of its nodes: one row each.
at::Tensor stacked(const std::vector<NodeSum>& nodes, const at::Tensor& like) {
  if (nodes.empty()) return at::empty({0, like.numel()}, like.options());
  std::vector<at::Tensor> rows;
  for (const NodeSum& node : nodes) rows.push_back(node.sum.reshape({-1}));
  return rows.size() == 1 ? rows[0].unsqueeze(0) : at::stack(rows);
}

// The closed nodes of rows that came from all members.
std::vector<NodeSum> close_received(const std::vector<at::Tensor>& received, const std::vector<std::vector<Node>>& nodes, const Node& root) {
  std::vector<NodeSum> all;
  for (size_t member = 0; member < nodes.size(); ++member) {
    for (size_t i = 0; i < nodes[member].size(); ++i) all.push_back({nodes[member][i], received[member].select(0, static_cast<int64_t>(i))});
  }
  return close_nodes(std::move(all), root);
}

std::vector<at::Tensor> buffers(const std::vector<std::vector<Node>>& nodes, int64_t columns, const at::Tensor& like) {
  std::vector<at::Tensor> result;
  for (const auto& list : nodes) result.push_back(at::empty({static_cast<int64_t>(list.size()), columns}, like.options()));
  return result;
}

std::vector<NodeSum> merge_small(Communicator& group, const at::Tensor& mine, const std::vector<std::vector<Node>>& nodes, const Node& root) {
  std::vector<at::Tensor> received = buffers(nodes, mine.size(1), mine);
  group.all_gather(received, mine.contiguous())->wait();
  return close_received(received, nodes, root);
}

// Each member finishes one shard of the elements, and hands it to all.
std::vector<NodeSum> merge_large(Communicator& group, const at::Tensor& mine, const std::vector<std::vector<Node>>& nodes, const Node& root) {
  const int64_t numel = mine.size(1);
  const auto shard = [&](int64_t member) { return layout::cut(numel, group.size(), member); };
  std::vector<at::Tensor> sent, received = buffers(nodes, shard(group.rank()).size(), mine);
  for (int64_t i = 0; i < group.size(); ++i) sent.push_back(mine.narrow(1, shard(i).begin, shard(i).size()).contiguous());
  group.all_to_all(received, sent)->wait();
  const std::vector<NodeSum> closed = close_received(received, nodes, root);

  const int64_t count = static_cast<int64_t>(closed.size());
  std::vector<at::Tensor> shards;
  for (int64_t i = 0; i < group.size(); ++i) shards.push_back(at::empty({count, shard(i).size()}, mine.options()));
  group.all_gather(shards, stacked(closed, mine.narrow(1, 0, shard(group.rank()).size())))->wait();
  std::vector<NodeSum> result;
  for (int64_t n = 0; n < count; ++n) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : shards) parts.push_back(part.select(0, n));
    result.push_back({closed[n].node, at::cat(parts)});
  }
  return result;
}

}  // namespace

std::vector<NodeSum> close_nodes(std::vector<NodeSum> nodes, const Node& root) {
  std::sort(nodes.begin(), nodes.end(), [](const NodeSum& a, const NodeSum& b) { return a.node.begin < b.node.begin; });
  std::vector<NodeSum> closed;
  for (NodeSum& node : nodes) {
    TESSERA_ASSERT(closed.empty() || closed.back().node.end <= node.node.begin, "nodes ", closed.back().node.str(), " and ", node.node.str(), " overlap");
    closed.push_back(std::move(node));
    while (closed.size() > 1 && are_children(closed[closed.size() - 2].node, closed.back().node, root)) {
      NodeSum right = std::move(closed.back());
      closed.pop_back();
      closed.back().sum = at::add(closed.back().sum, right.sum);
      closed.back().node.end = right.node.end;
    }
  }
  return closed;
}

std::vector<NodeSum> merge_nodes(Communicator& group, const std::vector<NodeSum>& mine, const std::vector<std::vector<Node>>& nodes,
                                 const Node& root, const at::Tensor& like) {
  TESSERA_ASSERT(static_cast<int64_t>(nodes.size()) == group.size() && nodes[group.rank()].size() == mine.size());
  const bool is_small = static_cast<int64_t>(like.nbytes()) < kSmallBytes;
  const at::Tensor rows = stacked(mine, like);
  std::vector<NodeSum> merged = is_small ? merge_small(group, rows, nodes, root) : merge_large(group, rows, nodes, root);
  for (NodeSum& node : merged) node.sum = node.sum.view(like.sizes());
  return merged;
}

}  // namespace tessera::comm
