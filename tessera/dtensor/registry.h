// The kernels that libtorch's dispatcher holds for us.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/library.h>

#include "tessera/dtensor/op_info.h"

namespace tessera::dtensor {

// Registers every kernel, once per process; later calls return at once. Everything public in this floor calls it.
//
// Note [Direct kernels]. A backend fallback alone would lose to composite-explicit kernels (empty_like and friends), which
// then return plain tensors without a word. So the dispatcher's list is walked and the kernel registered directly for every
// operator that takes a tensor and is not composite-implicit; composite-implicit ones decompose, except those that have a rule
// and a CPU kernel of their own, and the few whose decomposition destroys layout knowledge (linear, matmul,
// scaled_dot_product_attention).
void ensure_registered();

// Collects kernels of one namespace and key; keeps them registered for the life of the process.
class KernelRegistry {
 public:
  torch::Library& library(const std::string& ns, c10::DispatchKey key);

 private:
  struct Entry {
    std::string ns;
    c10::DispatchKey key;
    std::unique_ptr<torch::Library> library;
  };
  std::vector<Entry> entries_;
};

// The OpInfo of an operator that has our kernel; null for others.
const OpInfo* find_op(const std::string& name);

}  // namespace tessera::dtensor
