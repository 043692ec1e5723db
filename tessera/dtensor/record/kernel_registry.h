// Kernels of ours in libtorch's dispatcher.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <torch/library.h>

#include "tessera/dtensor/record/interception.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::dtensor {

// Collects kernels of one namespace and key; keeps them registered for the life of the process.
class KernelRegistry {
 public:
  torch::Library& library(const std::string& ns, c10::DispatchKey key);

  // For kernels of `aten` on DTensors that stand before autograd and are made of operators that it follows: tensors of
  // inference mode have no key of autograd, so each stands at two.
  std::array<torch::Library*, 2> before_autograd();

  // Registers a boxed kernel at the intercepting key for every operator of whose row `says` is true.
  template <auto* kernel, typename Says>
  void intercept_if(Says&& says) {
    torch::Library& all = library("aten", kIntercept);
    for (const auto& [op, row] : rules::RuleTable::instance().rows()) {
      if (says(row)) {
        all.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunction<kernel>());
      }
    }
  }
  template <auto* kernel>
  void intercept(rules::Caught caught) {
    intercept_if<kernel>([caught](const rules::Rule& row) { return row.caught == caught; });
  }

 private:
  struct Entry {
    std::string ns;
    c10::DispatchKey key;
    std::unique_ptr<torch::Library> library;
  };
  std::vector<Entry> entries_;
};

}  // namespace tessera::dtensor
