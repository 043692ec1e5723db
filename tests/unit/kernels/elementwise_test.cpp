// Elementwise kernels: close to the exact functions, and the same bits everywhere.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <ATen/Functions.h>

#include "arrays.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/maps/elementwise.h"

namespace tessera::kernels::elementwise_test {

using namespace tessera::kernels::test;

namespace {

using Exact = long double (*)(long double);

long double logistic(long double x) { return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x)); }
long double pi() { return 3.14159265358979323846264338327950288L; }
long double normal_area(long double x) { return erfcl(-x / sqrtl(2)) / 2; }
long double slope_argument(long double x) { return 2 * sqrtl(2 / pi()) * (x + 0.044715L * x * x * x); }

struct FunctionCase {
  const char* name;
  Function function;
  Exact exact;
  double units;  // allowed error in units of the last place
  at::Tensor (*torch)(const at::Tensor&);
};

const FunctionCase kFunctions[] = {
    {"exp", Function::kExp, expl, 1, at::exp},
    {"log", Function::kLog, logl, 1, at::log},
    {"tanh", Function::kTanh, tanhl, 2, at::tanh},
    {"erf", Function::kErf, erfl, 2, at::erf},
    {"sigmoid", Function::kSigmoid, logistic, 2, at::sigmoid},
    {"silu", Function::kSilu, [](long double x) { return x * logistic(x); }, 2, at::silu},
    {"gelu", Function::kGelu, [](long double x) { return x * normal_area(x); }, 2,
     [](const at::Tensor& x) { return at::gelu(x); }},
    {"gelu_tanh", Function::kGeluTanh, [](long double x) { return x * logistic(slope_argument(x)); }, 2,
     [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
};

// The derivative and the largest of the terms that it is the sum of.
struct Terms {
  long double value, largest;
};
struct DerivativeCase {
  const char* name;
  Derivative derivative;
  Terms (*exact)(long double);
  at::Tensor (*torch)(const at::Tensor& grad, const at::Tensor& x);
};

Terms sum_of(long double a, long double b) { return {a + b, std::max(fabsl(a), fabsl(b))}; }

const DerivativeCase kDerivatives[] = {
    {"silu", Derivative::kSilu, [](long double x) { return sum_of(logistic(x), logistic(x) * x * logistic(-x)); },
     at::silu_backward},
    {"gelu", Derivative::kGelu,
     [](long double x) { return sum_of(normal_area(x), x * expl(-x * x / 2) / sqrtl(2 * pi())); },
     [](const at::Tensor& grad, const at::Tensor& x) { return at::gelu_backward(grad, x); }},
    {"gelu_tanh", Derivative::kGeluTanh,
     [](long double x) {
       const long double v = slope_argument(x);
       const long double slope = 2 * sqrtl(2 / pi()) * (1 + 3 * 0.044715L * x * x);
       return sum_of(logistic(v), x * slope * logistic(v) * logistic(-v));
     },
     [](const at::Tensor& grad, const at::Tensor& x) { return at::gelu_backward(grad, x, "tanh"); }},
};

// |got - exact| in units of the last place of `size`, or of the smallest normal number.
template <typename T>
double units_off(T got, long double exact, long double size) {
  using Limits = std::numeric_limits<T>;
  if (exact != exact || static_cast<T>(exact) != static_cast<T>(exact)) {
    return got != got ? 0 : HUGE_VAL;
  }
  if (std::isinf(static_cast<T>(exact))) {
    return got == static_cast<T>(exact) ? 0 : HUGE_VAL;
  }
  int exponent = 0;
  frexpl(size, &exponent);
  return static_cast<double>(fabsl(got - exact) / ldexpl(1, std::max(exponent, Limits::min_exponent) - Limits::digits));
}

// Values spread evenly over all bit patterns: every exponent, both signs. Of NaN and infinities none.
template <typename T>
std::vector<T> spread_values(int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  std::vector<T> values;
  const Bits step = std::numeric_limits<Bits>::max() / static_cast<Bits>(count);
  Bits bits = 0;
  for (int64_t i = 0; i < count; ++i, bits += step) {
    const T value = std::bit_cast<T>(bits);
    if (std::isfinite(value)) {
      values.push_back(value);
    }
  }
  return values;
}

// Those, and as many between -range and range, where the functions change.
template <typename T>
std::vector<T> test_values(double range) {
  const int64_t count = is_full() ? 2'000'000 : 200'000;
  std::vector<T> values = spread_values<T>(count);
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(range * (2.0 * static_cast<double>(i) / static_cast<double>(count) - 1)));
  }
  return values;
}

template <typename T>
std::vector<T> mapped(Function function, const std::vector<T>& x) {
  std::vector<T> y(x.size());
  map(function, static_cast<int64_t>(x.size()), x.data(), y.data());
  return y;
}

template <typename T>
void expect_accurate() {
  for (const double range : {6.0, sizeof(T) == 4 ? 110.0 : 750.0}) {
    const std::vector<T> x = test_values<T>(range);
    for (const FunctionCase& c : kFunctions) {
      const std::vector<T> y = mapped(c.function, x);
      double worst = 0;
      T where = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const long double exact = c.exact(static_cast<long double>(x[i]));
        const double off = units_off(y[i], exact, exact);
        if (!(off <= worst)) {
          worst = off, where = x[i];
        }
      }
      EXPECT_LE(worst, c.units) << c.name << " of " << where << ", " << sizeof(T) << " bytes";
      std::printf("%s, %zu bytes, range %g: %.3f units, at %g\n", c.name, sizeof(T), range, worst,
                  static_cast<double>(where));
    }
  }
}

TEST(Elementwise, FloatIsWithinItsUnits) { expect_accurate<float>(); }
TEST(Elementwise, DoubleIsWithinItsUnits) { expect_accurate<double>(); }

// Float gelu is another polynomial in each piece of the line: here are the neighbours of every end, and of where it
// underflows.
TEST(Elementwise, GeluIsWithinItsUnitsWherePiecesMeet) {
  constexpr int32_t kNeighbours = 2000;
  std::vector<float> x;
  for (const float end : {0.5f, 1.0f, 2.0f, 3.0f, 5.0f, 7.0f, 11.0f, 13.0f, 14.2f, 14.5f}) {
    for (int32_t i = -kNeighbours; i <= kNeighbours; ++i) {
      const float neighbour = std::bit_cast<float>(std::bit_cast<int32_t>(end) + i);
      x.insert(x.end(), {neighbour, -neighbour});
    }
  }
  const std::vector<float> y = mapped(Function::kGelu, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact = x[i] * normal_area(x[i]);
    ASSERT_LE(units_off(y[i], exact, exact), 2) << "gelu of " << x[i];
  }
}

template <typename T>
void expect_accurate_derivatives() {
  const std::vector<T> x = test_values<T>(8);
  const std::vector<T> ones(x.size(), T(1));
  for (const DerivativeCase& c : kDerivatives) {
    std::vector<T> y(x.size());
    map_backward(c.derivative, static_cast<int64_t>(x.size()), ones.data(), x.data(), y.data());
    double worst = 0;
    T where = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const Terms exact = c.exact(std::clamp<long double>(x[i], -1000, 1000));
      const double off =
          units_off(y[i], exact.value, std::max<long double>(exact.largest, 1024 * std::numeric_limits<T>::min()));
      if (!(off <= worst)) {
        worst = off, where = x[i];
      }
    }
    EXPECT_LE(worst, 5) << c.name << " at " << where << ", " << sizeof(T) << " bytes";
    std::printf("derivative of %s, %zu bytes: %.3f units, at %g\n", c.name, sizeof(T), worst,
                static_cast<double>(where));
  }
}

TEST(Elementwise, DerivativesAreWithinFiveUnits) {
  expect_accurate_derivatives<float>();
  expect_accurate_derivatives<double>();
}

template <typename T>
std::vector<T> special_values() {
  using Limits = std::numeric_limits<T>;
  return {T(0),
          T(-0.0),
          Limits::infinity(),
          -Limits::infinity(),
          Limits::quiet_NaN(),
          -Limits::quiet_NaN(),
          Limits::max(),
          Limits::lowest(),
          Limits::min(),
          -Limits::min(),
          Limits::denorm_min(),
          -Limits::denorm_min(),
          T(1),
          T(-1)};
}

// In double for every T: in float libtorch takes another library's gelu, which is NaN at infinity.
template <typename T>
at::Tensor doubles_of(const std::vector<T>& values) {
  at::Tensor x = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), x.data_ptr<double>());
  return x;
}

// NaN where libtorch has NaN, infinities where it has them, the same sign of zero.
template <typename T>
void expect_special(const char* name, const std::vector<T>& x, const std::vector<T>& got, const at::Tensor& want) {
  for (size_t i = 0; i < x.size(); ++i) {
    const T expected = static_cast<T>(want.data_ptr<double>()[i]);
    if (expected != expected || std::isinf(expected)) {
      EXPECT_TRUE(same_bits(got[i], expected))
          << name << " of " << x[i] << " is " << got[i] << ", in libtorch " << expected;
    } else {
      EXPECT_NEAR(got[i], expected, std::abs(expected) * 1e-5 + std::numeric_limits<T>::denorm_min())
          << name << " of " << x[i];
      EXPECT_EQ(std::signbit(got[i]), std::signbit(expected)) << name << " of " << x[i];
    }
  }
}

template <typename T>
void expect_all_special() {
  const std::vector<T> x = special_values<T>();
  for (const FunctionCase& c : kFunctions) {
    expect_special(c.name, x, mapped(c.function, x), c.torch(doubles_of(x)));
  }
  const std::vector<T> ones(x.size(), T(1));
  for (const DerivativeCase& c : kDerivatives) {
    std::vector<T> got(x.size());
    map_backward(c.derivative, static_cast<int64_t>(x.size()), ones.data(), x.data(), got.data());
    const at::Tensor want = c.torch(at::ones_like(doubles_of(x)), doubles_of(x));
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) == std::numeric_limits<T>::max()) {
        continue;  // libtorch overflows on the way
      }
      EXPECT_EQ(std::isnan(got[i]), std::isnan(want.data_ptr<double>()[i])) << c.name << " derivative at " << x[i];
    }
  }
}

TEST(Elementwise, SpecialValuesAsInLibtorch) {
  expect_all_special<float>();
  expect_all_special<double>();
}

// All functions of one input, one after the other.
template <typename T>
std::vector<T> all_functions(int64_t n, const T* x, const T* grad, const bool* keep) {
  std::vector<T> all;
  std::vector<T> y(static_cast<size_t>(n));
  const auto collect = [&] { all.insert(all.end(), y.begin(), y.end()); };
  for (const FunctionCase& c : kFunctions) {
    map(c.function, n, x, y.data()), collect();
  }
  for (const DerivativeCase& c : kDerivatives) {
    map_backward(c.derivative, n, grad, x, y.data()), collect();
  }
  dropout(n, x, keep, 1.25, y.data()), collect();
  return all;
}

// Values of many magnitudes, with special ones among them.
template <typename T>
std::vector<T> mixed_values(Random& random, int64_t n) {
  std::vector<T> x = random.normal<T>(n, 4);
  const std::vector<T> special = special_values<T>();
  for (T& value : x) {
    if (random.one_in(10)) {
      value *= static_cast<T>(std::exp2(static_cast<double>(random.below(200) - 100)));
    }
    if (random.one_in(40)) {
      value = special[static_cast<size_t>(random.below(static_cast<int64_t>(special.size())))];
    }
  }
  return x;
}

// On every instruction set, at any address and in any piece an element has the bits that it has on scalar in the whole.
template <typename T>
void expect_same_everywhere(uint64_t seed) {
  Random random(seed);
  const int64_t n = 1 + random.below(random.one_in(20) ? 3000 : 100);
  const std::vector<T> x = mixed_values<T>(random, n + 20);
  const std::vector<T> grad = mixed_values<T>(random, n + 20);
  const auto keep = std::make_unique<bool[]>(static_cast<size_t>(n + 20));
  for (int64_t i = 0; i < n + 20; ++i) {
    keep[static_cast<size_t>(i)] = random.one_in(2);
  }
  const auto compute = [&](int64_t begin, int64_t count) {
    return all_functions<T>(count, x.data() + begin, grad.data() + begin, keep.get() + begin);
  };
  std::vector<T> whole;
  {
    const ScopedIsa scalar(Isa::kScalar);
    whole = compute(0, n);
  }
  const int64_t begin = random.below(n);
  const int64_t count = 1 + random.below(n - begin);
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    const int64_t at = first_difference(compute(0, n), whole);
    ASSERT_EQ(at, -1) << name_of(isa) << " differs from scalar in function " << at / n << " at "
                      << x[static_cast<size_t>(at % n)] << ", seed " << seed;
    const std::vector<T> part = compute(begin, count);
    for (size_t i = 0; i < part.size(); ++i) {
      const int64_t in_whole = static_cast<int64_t>(i) / count * n + begin + static_cast<int64_t>(i) % count;
      ASSERT_TRUE(same_bits(part[i], whole[static_cast<size_t>(in_whole)]))
          << name_of(isa) << ", a piece of " << count << ", seed " << seed;
    }
  }
}

TEST(Elementwise, SameBitsOnEveryInstructionSetAndInEveryPiece) {
  for (uint64_t seed = 0; seed < (is_full() ? 20000 : 600); ++seed) {
    expect_same_everywhere<float>(seed);
    expect_same_everywhere<double>(seed);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// The bits of today. They change only with the definition of a function.
template <typename T>
uint64_t golden() {
  uint64_t hash = 0;
  const std::vector<T> x = spread_values<T>(4000);
  for (const FunctionCase& c : kFunctions) {
    hash = tessera::base::hash_combine(hash, hash_of(mapped(c.function, x)));
  }
  std::vector<T> y(x.size());
  for (const DerivativeCase& c : kDerivatives) {
    map_backward(c.derivative, static_cast<int64_t>(x.size()), x.data(), x.data(), y.data());
    hash = tessera::base::hash_combine(hash, hash_of(y));
  }
  return hash;
}

TEST(Elementwise, GoldenBits) {
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    EXPECT_EQ(golden<float>(), 13752892283544404171u) << name_of(isa);
    EXPECT_EQ(golden<double>(), 8208517412924353083u) << name_of(isa);
  }
}

}  // namespace

}  // namespace tessera::kernels::elementwise_test
