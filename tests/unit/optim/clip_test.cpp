#include "tessera/optim/clip.h"

#include <limits>

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/utils/clip_grad.h>

#include <gtest/gtest.h>

namespace tessera::optim::clip_test {
namespace {

// Parameters with gradients of different sizes, the last without one.
std::vector<at::Tensor> with_gradients(at::ScalarType dtype, double scale) {
  std::vector<at::Tensor> parameters;
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 5}, {7}, {}, {0, 4}, {2, 2, 2}}) {
    parameters.push_back(at::zeros(sizes, dtype).requires_grad_());
    parameters.back().mutable_grad() = at::randn(sizes, dtype).mul(scale);
  }
  parameters.push_back(at::zeros({4}, dtype).requires_grad_());
  return parameters;
}

std::vector<at::Tensor> copy_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : parameters) {
    copies.push_back(parameter.detach().clone().requires_grad_());
    if (parameter.grad().defined()) {
      copies.back().mutable_grad() = parameter.grad().clone();
    }
  }
  return copies;
}

TEST(ClipGradNorm, EqualsTorch) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const double scale : {1e-3, 1.0, 1e3}) {
      const auto ours = with_gradients(dtype, scale);
      const auto theirs = copy_of(ours);
      const auto norm = clip_grad_norm(ours, 1.0);
      const auto expected = torch::nn::utils::clip_grad_norm_(theirs, 1.0);
      const double tolerance = dtype == at::kDouble ? 1e-14 : 1e-6;
      EXPECT_NEAR(norm.item<double>(), expected, tolerance * expected);
      EXPECT_EQ(norm.scalar_type(), dtype);
      for (size_t i = 0; i < ours.size(); ++i) {
        ASSERT_EQ(ours[i].grad().defined(), theirs[i].grad().defined());
        if (ours[i].grad().defined()) {
          EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), tolerance, 0)) << i;
        }
      }
    }
  }
}

TEST(ClipGradNorm, InfinityOnlyMeasures) {
  const auto parameters = with_gradients(at::kDouble, 10);
  const auto before = copy_of(parameters);
  const auto norm = clip_grad_norm(parameters, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(norm.equal(grad_norm(before)));
  EXPECT_TRUE(parameters[0].grad().equal(before[0].grad()));
}

TEST(ClipGradNorm, WithoutGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm({at::zeros({3}).requires_grad_()}, 1.0).item<double>(), 0);
  EXPECT_EQ(grad_norm({}).item<double>(), 0);
}

TEST(ClipGradNorm, RefusesALimitThatIsNotPositive) {
  EXPECT_THROW(clip_grad_norm({}, 0), c10::Error);
  EXPECT_THROW(clip_grad_norm({}, std::numeric_limits<double>::quiet_NaN()), c10::Error);
}

}  // namespace
}  // namespace tessera::optim::clip_test
