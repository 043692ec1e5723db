// Products of 16-bit numbers, with sums in float.
#include "tessera/kernels/product/product.h"

#include <cfenv>
#include <cstdlib>
#include <functional>
#include <type_traits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/kernels/base/isa.h"
#include "tests/unit/kernels/oracle.h"
#include "tests/unit/kernels/product_cases.h"

namespace tessera::kernels::narrow_product_test {
namespace {

using c10::BFloat16;
using c10::Half;

bool is_full() { return std::getenv("TESSERA_FULL") != nullptr; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
float expected_product(int64_t k, int64_t leaf, int64_t leaves, const std::function<float(int64_t)>& a,
                       const std::function<float(int64_t)>& b) {
  return std::is_same_v<T, BFloat16> ? oracle::product_of_pairs(k, leaf, leaves, a, b)
                                     : oracle::product<float>(k, leaf, leaves, a, b);
}

// What values a case has: ordinary, of every kind, or so small that products are near the smallest normal number.
enum class Values : int64_t { kOrdinary, kSpecial, kTiny };

template <typename T>
void fill(RandomCases& random, const PlacedMatrices<T>& to, Values values) {
  random.fill(to, values == Values::kSpecial);
  if (values != Values::kTiny || std::is_same_v<T, Half>) {
    return;
  }
  for (int64_t i = 0; i < to.span; ++i) {
    to.data[i] = static_cast<T>(std::ldexp(static_cast<float>(to.data[i]), static_cast<int>(random.number(-66, -58))));
  }
}

template <typename T>
class OracleCase {
 public:
  OracleCase(RandomCases& random, Walled (&memory)[3], int64_t most_k) {
    p_.batch = random.chance(80) ? 1 : random.number(0, 3);
    p_.m = random.size(80), p_.n = random.size(140), p_.k = random.size(most_k);
    p_.leaf = random.chance(25) ? 0 : random.number(1, std::max<int64_t>(p_.k, 1) + 3);
    const int64_t filled = p_.leaf == 0 ? 1 : std::max<int64_t>(1, ceil_div(p_.k, p_.leaf));
    p_.leaves = p_.leaf == 0 || random.chance(60) ? 0 : filled + (random.chance(50) ? 0 : random.number(1, 5));
    p_.accumulate = random.chance(30);
    const auto values = static_cast<Values>(random.number(0, 2));
    a_ = random.place<T>(memory[0], p_.batch, p_.m, p_.k);
    b_ = random.place<T>(memory[1], p_.batch, p_.k, p_.n);
    out_ = random.place<float>(memory[2], p_.batch, p_.m, p_.n);
    a_.matrices.batch *= random.chance(80);
    fill(random, a_, values);
    fill(random, b_, values);
    random.fill(out_, values == Values::kSpecial);
    p_.a = a_.as_const(), p_.b = b_.as_const(), p_.out = out_.matrices;
    before_.assign(out_.data, out_.data + out_.span);
    expected_ = before_;
    fill_expected(p_.leaf == 0 ? std::max<int64_t>(p_.k, 1) : p_.leaf, std::max(filled, p_.leaves));
  }

  // Empty if it is right.
  std::string run(Isa isa) {
    const ScopedIsa scope(isa);
    std::copy(before_.begin(), before_.end(), out_.data);
    run_product(p_);
    for (int64_t i = 0; i < out_.span; ++i) {
      if (!is_same(expected_[i], out_.data[i])) {
        return c10::str(name_of(isa), ": element ", i, " is ", out_.data[i], " and not ", expected_[i], "; batch ",
                        p_.batch, " m ", p_.m, " n ", p_.n, " k ", p_.k, " leaf ", p_.leaf, " leaves ", p_.leaves,
                        " accumulate ", p_.accumulate, " a ", p_.a.row, ",", p_.a.column, " b ", p_.b.row, ",",
                        p_.b.column, " out ", p_.out.row, ",", p_.out.column);
      }
    }
    return "";
  }

 private:
  void fill_expected(int64_t leaf, int64_t leaves) {
    for (int64_t x = 0; x < p_.batch; ++x) {
      for (int64_t i = 0; i < p_.m; ++i) {
        for (int64_t j = 0; j < p_.n; ++j) {
          const auto a = [&](int64_t s) { return static_cast<float>(a_.at(x, i, s)); };
          const auto b = [&](int64_t s) { return static_cast<float>(b_.at(x, s, j)); };
          const float sum = expected_product<T>(p_.k, leaf, leaves, a, b);
          float& to = expected_[&out_.at(x, i, j) - out_.data];
          to = p_.accumulate ? to + sum : sum;
        }
      }
    }
  }

  Product<T, float> p_;
  PlacedMatrices<T> a_, b_;
  PlacedMatrices<float> out_;
  std::vector<float> before_, expected_;
};

template <typename T>
class NarrowProducts : public ::testing::Test {};
using Types = ::testing::Types<BFloat16, Half>;
TYPED_TEST_SUITE(NarrowProducts, Types);

TYPED_TEST(NarrowProducts, EqualTheDefinitionOnEveryInstructionSet) {
  const uint32_t seed = is_full() ? std::random_device{}() : 30;
  SCOPED_TRACE(c10::str("seed ", seed));
  std::printf("seed %u\n", seed);
  RandomCases random(seed);
  Walled memory[3];
  const int64_t cases = is_full() ? 10000 : 400;
  for (int64_t i = 0; i < cases; ++i) {
    OracleCase<TypeParam> test(random, memory, i % 20 == 0 ? 2500 : 300);
    for (Isa isa : supported_isas()) {
      ASSERT_EQ(test.run(isa), "") << "case " << i;
    }
  }
}

// Contiguous numbers of all digits.
template <typename T>
std::vector<T> numbers(int64_t count, uint64_t seed) {
  std::vector<T> result(static_cast<size_t>(count));
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (T& value : result) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<T>(static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)) * 0x1p-21f);
  }
  return result;
}

template <typename T>
std::vector<float> multiply(const std::vector<T>& a, const std::vector<T>& b, int64_t m, int64_t n, int64_t k,
                            int64_t leaf) {
  std::vector<float> out(static_cast<size_t>(m * n));
  run_product(Product<T, float>{
      .m = m, .n = n, .k = k, .a = {a.data(), k, 1}, .b = {b.data(), n, 1}, .out = {out.data(), n, 1}, .leaf = leaf});
  return out;
}

// Longer than what is packed at a time, in all three directions, with leaves of odd length.
TYPED_TEST(NarrowProducts, EqualTheDefinitionWhenPackedInParts) {
  const std::vector<std::array<int64_t, 4>> sizes = {
      {3, 5, 9000, 1101}, {130, 3, 3101, 3101}, {260, 34, 2301, 289}, {2, 300, 2300, 7}};
  for (const auto& [m, n, k, leaf] : sizes) {
    const auto a = numbers<TypeParam>(m * k, 1), b = numbers<TypeParam>(k * n, 2);
    std::vector<float> expected(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m * n; ++i) {
      expected[i] = expected_product<TypeParam>(
          k, leaf, ceil_div(k, leaf), [&](int64_t s) { return static_cast<float>(a[i / n * k + s]); },
          [&](int64_t s) { return static_cast<float>(b[s * n + i % n]); });
    }
    for (Isa isa : supported_isas()) {
      const ScopedIsa scope(isa);
      ASSERT_EQ(expected, multiply(a, b, m, n, k, leaf)) << name_of(isa) << " " << m << "," << n << "," << k;
    }
  }
}

TYPED_TEST(NarrowProducts, NeitherThreadsNorTheFloatEnvironmentEnter) {
  const int64_t m = 200, n = 150, k = 301;
  auto a = numbers<TypeParam>(m * k, 3), b = numbers<TypeParam>(k * n, 4);
  for (size_t i = 0; i < a.size(); i += 3) {
    a[i] = std::numeric_limits<TypeParam>::denorm_min();
  }
  const int before = at::get_num_threads();
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    at::set_num_threads(1);
    const auto expected = multiply(a, b, m, n, k, 38);
    at::set_num_threads(3);
    EXPECT_EQ(expected, multiply(a, b, m, n, k, 38)) << name_of(isa);
    std::fesetround(FE_UPWARD);
    const auto upward = multiply(a, b, m, n, k, 38);
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(expected, upward) << name_of(isa);
#if defined(__x86_64__)
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040);
    const auto flushed = multiply(a, b, m, n, k, 38);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(control);
    EXPECT_EQ(after, control | 0x8040);
    EXPECT_EQ(expected, flushed) << name_of(isa);
    multiply(a, b, 3, 3, k, 0);
    EXPECT_EQ(_mm_getcsr() & 0x8040, control & 0x8040) << name_of(isa);
#endif
  }
  at::set_num_threads(before);
}

// Orders that one would try instead: if these agreed, the tests above would prove nothing.
TEST(NarrowProduct, TheFirstOfAPairFirstIsAnotherNumber) {
  const int64_t m = 40, n = 50, k = 512;
  const auto a = numbers<BFloat16>(m * k, 5), b = numbers<BFloat16>(k * n, 6);
  const auto exact = multiply(a, b, m, n, k, 0);
  int64_t others = 0;
  for (int64_t i = 0; i < m * n; ++i) {
    others += exact[i] != oracle::product<float>(
                              k, k, 1, [&](int64_t s) { return static_cast<float>(a[i / n * k + s]); },
                              [&](int64_t s) { return static_cast<float>(b[s * n + i % n]); });
  }
  EXPECT_GT(others, m * n / 5);
}

}  // namespace
}  // namespace tessera::kernels::narrow_product_test
