#include "tessera/kernels/product/product.h"

#include <cfenv>
#include <cstdlib>
#include <functional>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <map>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include "tessera/base/error.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/sums/lattice.h"
#include "tests/unit/kernels/oracle.h"
#include "tests/unit/kernels/product_cases.h"

namespace tessera::kernels::product_test {
namespace {

bool is_full() { return std::getenv("TESSERA_FULL") != nullptr; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Contiguous matrices with values from a generator written out here, so that goldens hold everywhere.
template <typename T>
struct Dense {
  int64_t rows, columns;
  std::vector<T> data;

  Dense(int64_t r, int64_t c, uint64_t seed = 0) : rows(r), columns(c), data(r * c) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (T& value : data) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      constexpr int kDigits = std::numeric_limits<T>::digits;  // all of them, so that every step rounds
      const auto whole = static_cast<int64_t>(state >> (64 - kDigits)) - (int64_t{1} << (kDigits - 1));
      value = static_cast<T>(whole) / static_cast<T>(int64_t{1} << (kDigits - 4));
    }
  }

  Matrices<const T> view(int64_t i = 0, int64_t j = 0) const { return {data.data() + i * columns + j, columns, 1}; }
  Matrices<T> out(int64_t i = 0, int64_t j = 0) { return {data.data() + i * columns + j, columns, 1}; }
};

template <typename T>
Dense<T> multiply(const Dense<T>& a, const Dense<T>& b, int64_t leaf, int64_t leaves = 0) {
  Dense<T> out(a.rows, b.columns);
  run_product(Product<T>{.m = a.rows,
                         .n = b.columns,
                         .k = a.columns,
                         .a = a.view(),
                         .b = b.view(),
                         .out = out.out(),
                         .leaf = leaf,
                         .leaves = leaves});
  return out;
}

template <typename T>
bool are_same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](T x, T y) { return is_same(x, y); });
}

template <typename T>
double share_that_differs(const std::vector<T>& a, const std::vector<T>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += !is_same(a[i], b[i]);
  }
  return static_cast<double>(count) / static_cast<double>(a.size());
}

template <typename T>
class Products : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Products, Types);

// One random case on every instruction set against the oracle; memory of `out` between its elements must not change.
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
    const bool special = random.chance(40);
    a_ = random.place<T>(memory[0], p_.batch, p_.m, p_.k);
    b_ = random.place<T>(memory[1], p_.batch, p_.k, p_.n);
    out_ = random.place<T>(memory[2], p_.batch, p_.m, p_.n);
    a_.matrices.batch *= random.chance(80);
    random.fill(a_, special);
    random.fill(b_, special);
    random.fill(out_, special);
    p_.a = a_.as_const(), p_.b = b_.as_const(), p_.out = out_.matrices;
    before_.assign(out_.data, out_.data + out_.span);
    expected_ = before_;
    fill_expected(p_.leaf == 0 ? std::max<int64_t>(p_.k, 1) : p_.leaf, std::max(filled, p_.leaves));
  }

  bool run(Isa isa) {
    const ScopedIsa scope(isa);
    std::copy(before_.begin(), before_.end(), out_.data);
    run_product(p_);
    return are_same(expected_, std::vector<T>(out_.data, out_.data + out_.span));
  }

  std::string str() const {
    return c10::str("batch ", p_.batch, " m ", p_.m, " n ", p_.n, " k ", p_.k, " leaf ", p_.leaf, " leaves ", p_.leaves,
                    " accumulate ", p_.accumulate, " a ", p_.a.row, ",", p_.a.column, " b ", p_.b.row, ",", p_.b.column,
                    " out ", p_.out.row, ",", p_.out.column);
  }

 private:
  void fill_expected(int64_t leaf, int64_t leaves) {
    for (int64_t x = 0; x < p_.batch; ++x) {
      for (int64_t i = 0; i < p_.m; ++i) {
        for (int64_t j = 0; j < p_.n; ++j) {
          const T sum = oracle::product<T>(
              p_.k, leaf, leaves, [&](int64_t s) { return a_.at(x, i, s); }, [&](int64_t s) { return b_.at(x, s, j); });
          T& to = expected_[&out_.at(x, i, j) - out_.data];
          to = p_.accumulate ? to + sum : sum;
        }
      }
    }
  }

  Product<T> p_;
  PlacedMatrices<T> a_, b_, out_;
  std::vector<T> before_, expected_;
};

TYPED_TEST(Products, EqualTheDefinitionOnEveryInstructionSet) {
  const uint32_t seed = is_full() ? std::random_device{}() : 20;
  SCOPED_TRACE(c10::str("seed ", seed));
  std::printf("seed %u\n", seed);
  RandomCases random(seed);
  Walled memory[3];
  const int64_t cases = is_full() ? 10000 : 1200;
  for (int64_t i = 0; i < cases; ++i) {
    OracleCase<TypeParam> test(random, memory, i % 20 == 0 ? 2500 : 300);
    for (Isa isa : supported_isas()) {
      ASSERT_TRUE(test.run(isa)) << name_of(isa) << ", case " << i << ": " << test.str();
    }
  }
}

// Longer than what is packed at a time, in all three directions.
TYPED_TEST(Products, EqualTheDefinitionWhenPackedInParts) {
  const std::vector<std::array<int64_t, 4>> sizes = {
      {3, 5, 9000, 1100}, {130, 3, 3100, 3100}, {260, 34, 2300, 290}, {2, 300, 2300, 7}};
  for (const auto& [m, n, k, leaf] : sizes) {
    const Dense<TypeParam> a(m, k, 1), b(k, n, 2);
    std::vector<TypeParam> expected(m * n);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        expected[i * n + j] = oracle::product<TypeParam>(
            k, leaf, ceil_div(k, leaf), [&](int64_t s) { return a.data[i * k + s]; },
            [&](int64_t s) { return b.data[s * n + j]; });
      }
    }
    for (Isa isa : supported_isas()) {
      const ScopedIsa scope(isa);
      ASSERT_TRUE(are_same(expected, multiply(a, b, leaf).data))
          << name_of(isa) << " " << m << "," << n << "," << k << " leaf " << leaf;
    }
  }
}

TYPED_TEST(Products, SumsOfNothingArePlusZero) {
  using T = TypeParam;
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    std::vector<T> out(6, T(-7));
    Product<T> p{.m = 2, .n = 3, .k = 0, .out = {out.data(), 3, 1}};
    run_product(p);
    EXPECT_TRUE(are_same(out, std::vector<T>(6, T(0))));
    out.assign(6, T(-0.0));
    p.accumulate = true;
    p.leaf = 5, p.leaves = 4;
    run_product(p);
    EXPECT_TRUE(are_same(out, std::vector<T>(6, T(0))));
    p.m = 0;
    EXPECT_NO_THROW(run_product(p));
  }
}

// The product of a denormal and a small number is -0 when it underflows: an empty leaf beside it makes it +0.
TYPED_TEST(Products, EmptyLeavesCountAsPlusZero) {
  using T = TypeParam;
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    const T tiny = std::numeric_limits<T>::denorm_min();
    T a[2] = {-tiny, T(0)}, b[2] = {tiny, T(1)}, out = 1;
    Product<T> p{.m = 1, .n = 1, .k = 1, .a = {a, 1, 1}, .b = {b, 1, 1}, .out = {&out, 1, 1}, .leaf = 1};
    run_product(p);
    EXPECT_TRUE(is_same(out, T(-0.0))) << name_of(isa);  // fma(-tiny, tiny, +0) rounds a tiny negative number
    p.leaves = 2;
    run_product(p);
    EXPECT_TRUE(is_same(out, T(0))) << name_of(isa);
  }
}

TYPED_TEST(Products, RowsAndColumnsDoNotDependOnTheirNeighbours) {
  using T = TypeParam;
  const int64_t m = 75, n = 140, k = 333, leaf = 42;
  const Dense<T> a(m, k, 3), b(k, n, 4);
  RandomCases random(21);
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    const Dense<T> whole = multiply(a, b, leaf);
    for (int64_t repeat = 0; repeat < (isa == Isa::kScalar ? 10 : 200); ++repeat) {
      const int64_t i0 = random.number(0, m - 1), i1 = random.number(i0 + 1, m);
      const int64_t j0 = random.number(0, n - 1), j1 = random.number(j0 + 1, n);
      Dense<T> part(i1 - i0, j1 - j0);
      run_product(Product<T>{
          .m = i1 - i0, .n = j1 - j0, .k = k, .a = a.view(i0), .b = b.view(0, j0), .out = part.out(), .leaf = leaf});
      for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = j0; j < j1; ++j) {
          const T alone = part.data[(i - i0) * (j1 - j0) + j - j0];
          ASSERT_TRUE(is_same(alone, whole.data[i * n + j])) << i0 << " " << i1 << " " << j0 << " " << j1;
        }
      }
    }
  }
}

// The sum over `node`: one that a rank made, or of its children's.
template <typename T>
std::vector<T> tree_sum(const std::map<std::pair<int64_t, int64_t>, std::vector<T>>& sums, const sums::Node& node) {
  const auto found = sums.find({node.begin, node.end});
  if (found != sums.end()) {
    return found->second;
  }
  const int64_t middle = node.begin + sums::left_size(node.size());
  std::vector<T> left = tree_sum(sums, {node.begin, middle});
  const std::vector<T> right = tree_sum(sums, {middle, node.end});
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = left[i] + right[i];
  }
  return left;
}

// What ranks hold when k is cut between leaves, merged. Empty leaves at the end are the last rank's.
template <typename T>
std::vector<T> product_of_ranks(const Dense<T>& a, const Dense<T>& b, int64_t leaves,
                                const std::vector<int64_t>& parts) {
  const int64_t k = a.columns, length = sums::leaf_length(k, leaves);
  std::map<std::pair<int64_t, int64_t>, std::vector<T>> sums;
  int64_t at = 0, leaf = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    at += parts[rank];
    const sums::Node held{leaf, rank + 1 == parts.size() ? leaves : at / length};
    leaf = held.end;
    for (const sums::Node& node : sums::cover(held, leaves)) {
      const int64_t begin = std::min(node.begin * length, k), end = std::min(node.end * length, k);
      Dense<T> out(a.rows, b.columns);
      run_product(Product<T>{.m = a.rows,
                             .n = b.columns,
                             .k = end - begin,
                             .a = a.view(0, begin),
                             .b = b.view(begin),
                             .out = out.out(),
                             .leaf = length,
                             .leaves = node.size()});
      sums[{node.begin, node.end}] = out.data;
    }
  }
  return tree_sum(sums, {0, leaves});
}

TYPED_TEST(Products, EveryCutOfLeavesMergesToTheWhole) {
  using T = TypeParam;
  const ScopedIsa scope(best_isa());
  for (int64_t k : {9, 64, 101, 1000}) {
    Dense<T> a(6, k, 5);
    const Dense<T> b(k, 20, 6);
    std::fill(a.data.begin(), a.data.begin() + k, T(-0.0));  // a row of zeros of both signs
    for (int64_t leaves : {1, 2, 3, 5, 8, 13}) {
      const auto whole = multiply(a, b, sums::leaf_length(k, leaves), leaves);
      for (int64_t ranks = 1; ranks <= 9; ++ranks) {
        std::vector<int64_t> parts;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          parts.push_back(layout::Cut(k, ranks, sums::leaf_unit(k, leaves))[rank].size());
        }
        ASSERT_TRUE(are_same(whole.data, product_of_ranks(a, b, leaves, parts)))
            << "k " << k << " leaves " << leaves << " ranks " << ranks;
      }
    }
  }
}

TYPED_TEST(Products, AddSampleBySampleInOrder) {
  using T = TypeParam;
  const int64_t samples = 5, tokens = 300;
  const Dense<T> a(samples * tokens, 9, 7), b(samples * tokens, 17, 8);
  std::vector<T> expected(9 * 17, T(0));
  Dense<T> out(9, 17);
  std::fill(out.data.begin(), out.data.end(), T(0));
  for (int64_t s = 0; s < samples; ++s) {
    Product<T> p{.m = 9,
                 .n = 17,
                 .k = tokens,
                 .a = a.view(s * tokens),
                 .b = b.view(s * tokens),
                 .out = out.out(),
                 .accumulate = true};
    std::swap(p.a.row, p.a.column);
    run_product(p);
    for (int64_t i = 0; i < 9 * 17; ++i) {
      const auto left = [&](int64_t t) { return a.data[(s * tokens + t) * 9 + i / 17]; };
      const auto right = [&](int64_t t) { return b.data[(s * tokens + t) * 17 + i % 17]; };
      expected[i] = expected[i] + oracle::product<T>(tokens, tokens, 1, left, right);
    }
  }
  EXPECT_TRUE(are_same(expected, out.data));
}

TYPED_TEST(Products, ThreadsDoNotEnter) {
  using T = TypeParam;
  const int before = at::get_num_threads();
  for (Isa isa : supported_isas()) {
    if (isa == Isa::kScalar) {
      continue;  // slow, and split by the same code
    }
    const ScopedIsa scope(isa);
    const std::vector<std::array<int64_t, 3>> sizes = {{200, 150, 100}, {1000, 7, 300}, {5, 1111, 400}, {97, 97, 2100}};
    for (const auto& [m, n, k] : sizes) {
      const Dense<T> a(m, k, 9), b(k, n, 10);
      std::vector<std::vector<T>> results;
      for (int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        results.push_back(multiply(a, b, ceil_div(k, 8)).data);
      }
      EXPECT_TRUE(are_same(results[0], results[1]) && are_same(results[0], results[2])) << m << "," << n << "," << k;
    }
  }
  at::set_num_threads(before);
}

// The caller's rounding and flushing change plain sums, but neither the product nor, afterwards, the caller's settings.
TYPED_TEST(Products, TheCallersFloatEnvironmentDoesNotEnter) {
  using T = TypeParam;
  Dense<T> a(30, 200, 11), b(200, 40, 12);
  for (T& value : a.data) {
    value *= std::numeric_limits<T>::min();
  }
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    const auto expected = multiply(a, b, 25).data;
    std::fesetround(FE_UPWARD);
    const auto upward = multiply(a, b, 25).data;
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    std::fesetround(FE_TONEAREST);
    EXPECT_TRUE(are_same(expected, upward)) << name_of(isa);
#if defined(__x86_64__)
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040);  // results and operands below the normal range become zero
    const auto flushed = multiply(a, b, 25).data;
    const unsigned after = _mm_getcsr();
    _mm_setcsr(control);
    EXPECT_EQ(after, control | 0x8040);
    EXPECT_TRUE(are_same(expected, flushed)) << name_of(isa);
#endif
  }
  at::set_num_threads(before);
}

// Orders that people use instead, on the same numbers: if these agreed, the tests above would prove nothing.
TEST(Product, OtherOrdersAreOtherNumbers) {
  const int64_t m = 40, n = 50, k = 2000, leaf = 250;
  const Dense<float> a(m, k, 13), b(k, n, 14);
  const auto exact = multiply(a, b, leaf).data;
  std::vector<float> ring(m * n, 0), one_chain(m * n, 0);
  for (int64_t begin = 0; begin < k; begin += leaf) {
    Dense<float> part(m, n);
    run_product(
        Product<float>{.m = m, .n = n, .k = leaf, .a = a.view(0, begin), .b = b.view(begin), .out = part.out()});
    for (int64_t i = 0; i < m * n; ++i) {
      ring[i] += part.data[i];
    }
  }
  for (int64_t i = 0; i < m * n; ++i) {
    for (int64_t s = 0; s < k; ++s) {
      one_chain[i] = std::fma(a.data[i / n * k + s], b.data[s * n + i % n], one_chain[i]);
    }
  }
  const auto from = [](const Dense<float>& x) {
    return at::from_blob(const_cast<float*>(x.data.data()), {x.rows, x.columns}, at::kFloat);
  };
  const at::Tensor mm = at::mm(from(a), from(b));
  const std::vector<float> stock(mm.const_data_ptr<float>(), mm.const_data_ptr<float>() + m * n);
  EXPECT_GT(share_that_differs(exact, ring), 0.2);
  EXPECT_GT(share_that_differs(exact, one_chain), 0.2);
  EXPECT_GT(share_that_differs(exact, multiply(a, b, 125).data), 0.2);
  EXPECT_GT(share_that_differs(exact, stock), 0.2);
}

template <typename T>
uint64_t hash_of(const std::vector<T>& values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (T value : values) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (unsigned char byte : bytes) {
      hash = (hash ^ byte) * 0x100000001B3u;
    }
  }
  return hash;
}

TEST(Product, GoldenHashes) {
  struct Golden {
    int64_t m, n, k, leaf;
    uint64_t f32, f64;
  };
  for (const Golden& golden : {
           Golden{1, 1, 1, 1, 0x10E68FE2B643A195u, 0x68E473B4C52F985Eu},
           Golden{7, 9, 300, 300, 0xDFBC6FCBBB28BF5Eu, 0x76669F6C6C90F70Au},
           Golden{33, 65, 1000, 125, 0x1E91B7A6D193B650u, 0xC1177A02910F96DFu},
           Golden{20, 100, 2500, 313, 0x488D6B886E07B5E0u, 0x9E34369D87104C2Du},
       }) {
    const auto [m, n, k, leaf, f32, f64] = golden;
    for (Isa isa : supported_isas()) {
      const ScopedIsa scope(isa);
      EXPECT_EQ(hash_of(multiply(Dense<float>(m, k, 15), Dense<float>(k, n, 16), leaf).data), f32)
          << m << " " << name_of(isa);
      EXPECT_EQ(hash_of(multiply(Dense<double>(m, k, 15), Dense<double>(k, n, 16), leaf).data), f64)
          << m << " " << name_of(isa);
    }
  }
}

TEST(Product, RefusesSizesThatCannotBe) {
  float x = 0;
  const Product<float> good{.m = 1, .n = 1, .k = 1, .a = {&x, 1, 1}, .b = {&x, 1, 1}, .out = {&x, 1, 1}};
  const auto refuses = [&](const std::function<void(Product<float>&)>& change) {
    Product<float> p = good;
    change(p);
    EXPECT_THROW(run_product(p), c10::Error);
  };
  refuses([](auto& p) { p.m = -1; });
  refuses([](auto& p) { p.k = -1; });
  refuses([](auto& p) { p.batch = -1; });
  refuses([](auto& p) { p.leaf = -2; });
  refuses([](auto& p) { p.k = 9, p.leaf = 4, p.leaves = 2; });
  refuses([](auto& p) { p.k = 9, p.leaf = 0, p.leaves = 2; });
}

TEST(InstructionSet, IsChosenAndScoped) {
  EXPECT_TRUE(is_supported(Isa::kScalar));
  EXPECT_TRUE(is_supported(best_isa()));
  const Isa before = current_isa();
  {
    const ScopedIsa scalar(Isa::kScalar);
    EXPECT_EQ(current_isa(), Isa::kScalar);
    const ScopedIsa best(best_isa());
    EXPECT_EQ(current_isa(), best_isa());
  }
  EXPECT_EQ(current_isa(), before);
}

}  // namespace
}  // namespace tessera::kernels::product_test
