// Autograd nodes of our own, and tangents.
#pragma once

#include <memory>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace tessera::dtensor {

// libtorch 2.13 counts the owners of a node inside it, 2.11 beside it.
using NodePtr = decltype(torch::autograd::Edge::function);

// A new node of type `Node`; it takes the next sequence number.
template <typename Node>
auto make_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>();
  } else {
    return c10::make_intrusive<Node>();
  }
}

// Calls `visit` with the nodes and those behind them, each once; behind one only where it gave true for that one.
template <typename Visit>
void for_each_node(std::vector<torch::autograd::Node*> open, Visit visit) {
  std::unordered_set<const torch::autograd::Node*> seen;
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node).second || !visit(*node)) {
      continue;
    }
    for (const auto& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
}

// Whether forward mode differentiates along the tensor.
inline bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

}  // namespace tessera::dtensor
