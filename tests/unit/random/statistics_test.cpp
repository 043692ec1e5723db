// The counter generator draws from the distributions it names.
#include <gtest/gtest.h>

#include <cmath>

#include <ATen/ops/empty.h>

#include "tessera/random/counter.h"

namespace tessera::random::statistics_test {
namespace {

constexpr int64_t kCount = 200000;

// The values of one stream, as doubles, cut over several samples so that sample borders are covered.
std::vector<double> draw(const Distribution& distribution, at::ScalarType dtype) {
  Region region = whole_region({200, kCount / 200});
  region.batch_dim = 0;
  at::Tensor local = at::empty(local_sizes(region), dtype);
  fill(local, region, {11, make_site("statistics").hash, 5}, distribution);
  const at::Tensor wide = local.to(at::kDouble);
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + kCount};
}

// The largest distance between the empirical distribution function and `cdf`.
template <typename Cdf>
double distance(std::vector<double> values, Cdf cdf) {
  std::sort(values.begin(), values.end());
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = cdf(values[i]);
    largest = std::max({largest, std::abs(expected - static_cast<double>(i) / kCount),
                        std::abs(expected - static_cast<double>(i + 1) / kCount)});
  }
  return largest;
}

// One in a million samples of a right generator lies beyond this (Kolmogorov-Smirnov).
const double kBound = 2.7 / std::sqrt(static_cast<double>(kCount));

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

TEST(Statistics, Uniform) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const std::vector<double> values = draw(Uniform{-1, 3}, dtype);
    EXPECT_LT(distance(values, [](double x) { return (x + 1) / 4; }), kBound);
    EXPECT_GE(*std::min_element(values.begin(), values.end()), -1.0);
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 3.0);
  }
}

TEST(Statistics, UniformNeverReachesItsEnd) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    for (const double to : {1.0, 1.0 + 0x1p-6}) {
      const std::vector<double> values = draw(Uniform{1.0 - 0x1p-6, to}, dtype);
      EXPECT_LT(*std::max_element(values.begin(), values.end()), to) << dtype;
      EXPECT_GE(*std::min_element(values.begin(), values.end()), 1.0 - 0x1p-6) << dtype;
    }
  }
}

TEST(Statistics, Normal) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const std::vector<double> values = draw(Normal{2, 3}, dtype);
    EXPECT_LT(distance(values, [](double x) { return normal_cdf((x - 2) / 3); }), kBound);
    double mean = 0, variance = 0, product = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      mean += values[i] / kCount;
      variance += (values[i] - 2) * (values[i] - 2) / kCount;
      product += (values[i] - 2) * (values[(i + 1) % kCount] - 2) / kCount;
    }
    const double error = 5 / std::sqrt(static_cast<double>(kCount));
    EXPECT_NEAR(mean, 2, 3 * error);
    EXPECT_NEAR(variance, 9, 9 * std::sqrt(2.0) * error);
    EXPECT_NEAR(product, 0, 9 * error);
  }
}

TEST(Statistics, Exponential) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const std::vector<double> values = draw(Exponential{0.5}, dtype);
    EXPECT_LT(distance(values, [](double x) { return 1 - std::exp(-0.5 * x); }), kBound);
    EXPECT_GT(*std::min_element(values.begin(), values.end()), 0.0);
  }
  for (const double value : draw(Exponential{1e9}, at::kHalf)) {
    ASSERT_GT(value, 0.0);
  }
}

TEST(Statistics, LogNormal) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    EXPECT_LT(distance(draw(LogNormal{0.5, 2}, dtype), [](double x) { return normal_cdf((std::log(x) - 0.5) / 2); }),
              kBound);
  }
}

TEST(Statistics, Cauchy) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    EXPECT_LT(distance(draw(Cauchy{1, 3}, dtype), [](double x) { return 0.5 + std::atan((x - 1) / 3) / M_PI; }),
              kBound);
  }
}

TEST(Statistics, Geometric) {
  for (const at::ScalarType dtype : {at::kLong, at::kFloat, at::kDouble}) {
    for (const double p : {0.02, 0.3, 0.9}) {
      const std::vector<double> values = draw(Geometric{p}, dtype);
      EXPECT_EQ(*std::min_element(values.begin(), values.end()), 1.0);
      for (const double bound : {1.0, 2.0, 5.0, 50.0}) {
        const auto within = std::count_if(values.begin(), values.end(), [&](double value) { return value <= bound; });
        EXPECT_NEAR(static_cast<double>(within) / kCount, 1 - std::pow(1 - p, bound), 5 * std::sqrt(0.25 / kCount))
            << p << " " << bound;
      }
    }
  }
  for (const double value : draw(Geometric{1e-4}, at::kChar)) {
    ASSERT_TRUE(value >= 1 && value <= 127);
  }
}

TEST(Statistics, Bernoulli) {
  for (const double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    double mean = 0;
    for (const double value : draw(Bernoulli{p}, at::kByte)) {
      mean += value / kCount;
    }
    EXPECT_NEAR(mean, p, 5 * std::sqrt(p * (1 - p) / kCount) + 1e-9) << p;
  }
}

TEST(Statistics, Integers) {
  std::vector<double> counts(7);
  for (const double value : draw(Integers{-3, 4}, at::kLong)) {
    ASSERT_TRUE(value >= -3 && value < 4);
    counts[static_cast<size_t>(value + 3)] += 1;
  }
  double chi_squared = 0;
  for (const double count : counts) {
    chi_squared += (count - kCount / 7.0) * (count - kCount / 7.0) / (kCount / 7.0);
  }
  EXPECT_LT(chi_squared, 38.3);  // 6 degrees of freedom, one in a million
  const double span = 0x1p50;
  EXPECT_LT(distance(draw(Integers{0, int64_t{1} << 50}, at::kLong), [&](double x) { return x / span; }), kBound);
}

}  // namespace

}  // namespace tessera::random::statistics_test
