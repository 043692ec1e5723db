#include "tessera/dtensor/record/kernel_registry.h"

#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

torch::Library& KernelRegistry::library(const std::string& ns, c10::DispatchKey key) {
  for (Entry& entry : entries_) {
    if (entry.ns == ns && entry.key == key) {
      return *entry.library;
    }
  }
  entries_.push_back({ns, key, std::make_unique<torch::Library>(torch::Library::IMPL, ns, key, __FILE__, __LINE__)});
  return *entries_.back().library;
}

std::array<torch::Library*, 2> KernelRegistry::before_autograd() {
  return {&library("aten", c10::DispatchKey::AutogradPrivateUse3), &library("aten", kKey)};
}

}  // namespace tessera::dtensor
