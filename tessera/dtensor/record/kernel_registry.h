// Kernels of ours in libtorch's dispatcher.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/library.h>

namespace tessera::dtensor {

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

}  // namespace tessera::dtensor
