#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/comm/run_ranks.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/registry.h"

using namespace tessera;
using dtensor::distribute;
using dtensor::full_tensor;

TEST(Smoke, ReluMmSumBackward) {
  const at::Tensor x0 = at::randn({8, 6}, at::kDouble), w0 = at::randn({6, 4}, at::kDouble);
  at::Tensor xr = x0.clone().requires_grad_(), wr = w0.clone().requires_grad_();
  at::linear(xr, wr.t()).relu().sum().backward();
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  dtensor::ensure_registered();
  comm::run_ranks(4, [&](int64_t rank) {
    at::Tensor x = distribute(x0, mesh, "{dp: S(0)}").requires_grad_();
    at::Tensor w = distribute(w0, mesh, "{tp: S(1)}").requires_grad_();
    at::Tensor y = at::mm(x, w);
    if (rank == 0) std::cout << dtensor::spec_of(y).str() << "\n";
    at::Tensor loss = y.relu().sum();
    if (rank == 0) std::cout << dtensor::spec_of(loss).str() << "\n";
    loss.backward();
    if (rank == 0) std::cout << dtensor::spec_of(x.grad()).str() << dtensor::spec_of(w.grad()).str() << "\n";
    EXPECT_TRUE(at::allclose(full_tensor(x.grad()), xr.grad(), 1e-12));
    EXPECT_TRUE(at::allclose(full_tensor(w.grad()), wr.grad(), 1e-12));
  });
}
