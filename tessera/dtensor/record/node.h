// Autograd nodes of our own, and tangents.
#pragma once

#include <memory>
#include <type_traits>

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

// Whether forward mode differentiates along the tensor.
inline bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

}  // namespace tessera::dtensor
