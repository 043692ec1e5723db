// Functions of one tensor: in every layout their values and gradients must be those of one device.
#pragma once

#include <utility>

#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks {

using Function = std::function<at::Tensor(const at::Tensor&)>;
using Functions = std::vector<std::pair<const char*, Function>>;

// A function's value at `x`, and the gradient of a sum of its elements that weighs each of them.
inline std::pair<at::Tensor, at::Tensor> value_and_gradient(const Function& function, const at::Tensor& x) {
  const at::Tensor found = function(x);
  (found * waves(found.sizes(), 0.9)).sum().backward();
  return {found.detach(), x.grad()};
}

// Of `value` in every layout on meshes of 3 and of 2 x 2 ranks, and of a plain tensor in a rank. What the functions
// give must be real.
inline void expect_those_of_one_device(const Functions& functions, const at::Tensor& value) {
  std::vector<std::pair<at::Tensor, at::Tensor>> expected;
  for (const auto& [name, function] : functions) {
    expected.push_back(value_and_gradient(function, value.clone().requires_grad_()));
  }
  const auto expect_alike = [&](size_t i, const at::Tensor& x, const std::string& layout) {
    SCOPED_TRACE(c10::str(functions[i].first, " of ", layout));
    const auto [found, gradient] = value_and_gradient(functions[i].second, x);
    EXPECT_LE(error_of(full_tensor(found), expected[i].first), 1e-12);
    EXPECT_LE(error_of(full_tensor(gradient), expected[i].second), 1e-10);
  };
  for (const char* text : {"a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      for (size_t i = 0; i < functions.size(); ++i) {
        expect_alike(i, value.clone().requires_grad_(), "a plain tensor");
        for (const Placements& placements : plain_layouts(mesh, value.dim())) {
          expect_alike(i, spread(value, mesh, placements).requires_grad_(), layout::str(mesh, placements));
        }
      }
    });
  }
}

}  // namespace tessera::ranks
