// The one-device blocks against closed forms and libtorch's own operations.
#include <gtest/gtest.h>

#include <cmath>

#include <torch/torch.h>

#include "tessera/nn/attention.h"
#include "tessera/nn/make.h"
#include "tessera/nn/rms_norm.h"
#include "tessera/nn/rotary.h"

namespace tessera::nn::blocks_test {
namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(RMSNorm, EqualsLibtorch) {
  torch::manual_seed(1);
  RMSNorm norm(6, 1e-5, at::kDouble);
  const at::Tensor x = at::randn({2, 3, 6}, at::kDouble);
  EXPECT_TRUE(at::equal(norm->weight, at::ones({6}, at::kDouble)));
  torch::nn::init::normal_(norm->weight);
  EXPECT_LT(largest_difference(norm(x), at::rms_norm(x, {6}, norm->weight, 1e-5)), 1e-14);
}

TEST(RMSNorm, ComputesNarrowInputsInFloat) {
  RMSNorm norm(4, 1e-5, at::kBFloat16);
  const at::Tensor x = at::full({1, 4}, 300.0, at::kBFloat16);
  const at::Tensor y = norm(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, at::ones({1, 4}, at::kBFloat16)));
}

TEST(RMSNorm, Clones) {
  RMSNorm norm(4);
  const auto copy = std::dynamic_pointer_cast<RMSNormImpl>(norm->clone());
  EXPECT_TRUE(at::equal(copy->weight, norm->weight));
  EXPECT_NE(copy->weight.data_ptr(), norm->weight.data_ptr());
}

// Pair i at position p is turned by p * theta^(-2i / head_dim).
TEST(Rotary, ClosedForm) {
  const int64_t length = 5, head_dim = 6;
  const at::Tensor x = at::randn({2, 3, length, head_dim}, at::kDouble);
  const at::Tensor y = apply_rotary(x, rotary_tables(length, head_dim, 100.0, at::kDouble));
  for (int64_t p = 0; p < length; ++p) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = static_cast<double>(p) * std::pow(100.0, -2.0 * static_cast<double>(i) / head_dim);
      const double a = x[1][2][p][i].item<double>(), b = x[1][2][p][i + 3].item<double>();
      EXPECT_NEAR(y[1][2][p][i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-14);
      EXPECT_NEAR(y[1][2][p][i + 3].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-14);
    }
  }
}

// A product of turned vectors depends on the distance of their positions alone.
TEST(Rotary, IsRelative) {
  const RotaryTables tables = rotary_tables(8, 4, 10000.0, at::kDouble);
  const at::Tensor q = apply_rotary(at::randn({1, 4}, at::kDouble).expand({8, 4}), tables);
  const at::Tensor k = apply_rotary(at::randn({1, 4}, at::kDouble).expand({8, 4}), tables);
  const at::Tensor scores = at::matmul(q, k.t());
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(scores[i][i + 2].item<double>(), scores[0][2].item<double>(), 1e-14);
  }
  EXPECT_THROW(rotary_tables(4, 5, 10000.0, at::kFloat), c10::Error);
}

TEST(Attention, EqualsScaledDotProductAttention) {
  torch::manual_seed(2);
  const auto leaf = [] { return at::randn({2, 3, 7, 4}, at::kDouble).requires_grad_(); };
  const at::Tensor q = leaf(), k = leaf(), v = leaf();
  const at::Tensor plain = causal_attention(q, k, v);
  const at::Tensor fused = causal_attention(q, k, v, {.fused = true});
  EXPECT_LT(largest_difference(plain, fused), 1e-14);
  const at::Tensor seed = at::randn_like(plain);
  const auto plain_grads = torch::autograd::grad({plain}, {q, k, v}, {seed});
  const auto fused_grads = torch::autograd::grad({fused}, {q, k, v}, {seed});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(largest_difference(plain_grads[i], fused_grads[i]), 1e-13) << i;
  }
}

TEST(Attention, DropsOnlyWhileTraining) {
  torch::manual_seed(3);
  const at::Tensor q = at::randn({1, 2, 6, 4});
  const at::Tensor still = causal_attention(q, q, q);
  EXPECT_TRUE(at::equal(causal_attention(q, q, q, {.dropout = 0.5}), still));
  EXPECT_FALSE(at::equal(causal_attention(q, q, q, {.dropout = 0.5, .training = true}), still));
}

TEST(Attention, RepeatsHeads) {
  const at::Tensor x = at::randn({2, 3, 5, 4});
  EXPECT_TRUE(at::equal(repeat_heads(x, 2), at::repeat_interleave(x, 2, 1)));
  EXPECT_TRUE(at::equal(repeat_heads(x, 1), x));
}

TEST(Make, DtypeAndDeviation) {
  torch::manual_seed(4);
  const torch::nn::Linear linear = make_linear(200, 300, Bias::kZero, {.dtype = at::kDouble, .std = 0.5});
  EXPECT_EQ(linear->weight.scalar_type(), at::kDouble);
  EXPECT_NEAR(linear->weight.std().item<double>(), 0.5, 0.01);
  EXPECT_TRUE(at::equal(linear->bias, at::zeros({300}, at::kDouble)));
  EXPECT_FALSE(make_linear(2, 3, Bias::kNone, {})->bias.defined());
  EXPECT_EQ(make_embedding(5, 3, {.dtype = at::kBFloat16})->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(make_layer_norm(5, 1e-3, at::kDouble)->bias.scalar_type(), at::kDouble);
  EXPECT_EQ(make_layer_norm(5, 1e-3, at::kDouble)->options.eps(), 1e-3);
}

}  // namespace

}  // namespace tessera::nn::blocks_test
