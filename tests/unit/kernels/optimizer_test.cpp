// Steps of optimizers: slices of them give the bits of the whole, by the documented formulas.
#include <gtest/gtest.h>

#include <cmath>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "arrays.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/maps/adamw_8bit.h"
#include "tessera/kernels/maps/optimizer.h"

namespace tessera::kernels::optimizer_test {

using namespace tessera::kernels::test;

namespace {

// The documented formulas, one element after the other.
template <typename T>
void adamw_oracle(const AdamW& o, T& p, T g, T& m, T& v, T* largest = nullptr) {
  const bool is_apart = o.decay == Decay::kApart;
  g = o.maximize ? -g : g;
  g = is_apart ? g : std::fma(static_cast<T>(o.weight_decay), p, g);
  m = std::fma(static_cast<T>(1 - o.beta1), g - m, m);
  v = std::fma(static_cast<T>(1 - o.beta2) * g, g, v * static_cast<T>(o.beta2));
  const T square = largest ? * largest = std::max(*largest, v) : v;
  const double step = static_cast<double>(o.step);
  const T size = static_cast<T>(o.lr / (1 - std::pow(o.beta1, step)));
  const T root = std::sqrt(square) / static_cast<T>(std::sqrt(1 - std::pow(o.beta2, step))) + static_cast<T>(o.eps);
  p = p * static_cast<T>(is_apart ? 1 - o.lr * o.weight_decay : 1) + (-size * m) / root;
}

template <typename T>
void sgd_oracle(const Sgd& o, T& p, T g, T& buffer) {
  g = std::fma(static_cast<T>(o.weight_decay), p, o.maximize ? -g : g);
  if (o.momentum != 0) {
    buffer = std::fma(static_cast<T>(1 - o.dampening), g, buffer * static_cast<T>(o.momentum));
    g = o.nesterov ? std::fma(static_cast<T>(o.momentum), buffer, g) : buffer;
  }
  p = std::fma(static_cast<T>(-o.lr), g, p);
}

template <typename T>
void lion_oracle(const Lion& o, T& p, T g, T& m) {
  g = o.maximize ? -g : g;
  const T mixed = std::fma(static_cast<T>(1 - o.beta1), g, m * static_cast<T>(o.beta1));
  const T sign = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
  p = p * static_cast<T>(1 - o.lr * o.weight_decay) - static_cast<T>(o.lr) * sign;
  m = std::fma(static_cast<T>(1 - o.beta2), g, m * static_cast<T>(o.beta2));
}

// Parameters, gradients and state of a case, each of whose arrays is stepped in two slices.
template <typename T>
struct Case {
  explicit Case(Random& random)
      : n(1 + random.below(200)),
        cut(random.below(n + 1)),
        p(random.normal<T>(n)),
        g(random.normal<T>(n)),
        m(random.normal<T>(n)),
        v(random.normal<T>(n)),
        largest(random.normal<T>(n)) {
    for (int64_t i = 0; i < n; ++i) {
      v[i] *= v[i], largest[i] *= largest[i];
      if (random.one_in(8)) {
        g[i] = m[i] = 0;
      }
    }
  }

  template <typename Step>
  void step_slices(const Step& step) {
    step(0, cut), step(cut, n - cut);
  }

  int64_t n, cut;
  std::vector<T> p, g, m, v, largest;
};

template <typename T>
void expect_same(const Case<T>& got, const Case<T>& want, const std::string& what) {
  ASSERT_EQ(first_difference(got.p, want.p), -1) << what;
  ASSERT_EQ(first_difference(got.m, want.m), -1) << what;
  ASSERT_EQ(first_difference(got.v, want.v), -1) << what;
  ASSERT_EQ(first_difference(got.largest, want.largest), -1) << what;
}

template <typename T, typename Oracle, typename Step>
void expect_step(const Case<T>& start, uint64_t seed, const char* name, const Oracle& oracle, const Step& step) {
  Case<T> want = start;
  for (int64_t i = 0; i < want.n; ++i) {
    oracle(want, i);
  }
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    Case<T> got = start;
    got.step_slices([&](int64_t at, int64_t count) { step(got, at, count); });
    expect_same(got, want, std::string(name) + " on " + name_of(isa) + ", seed " + std::to_string(seed));
  }
}

template <typename T>
void expect_optimizers(uint64_t seed) {
  Random random(seed);
  const Case<T> start(random);
  const AdamW adamw{.lr = 3e-3,
                    .weight_decay = 0.1,
                    .step = 1 + random.below(50),
                    .decay = random.one_in(2) ? Decay::kApart : Decay::kInGradient,
                    .maximize = random.one_in(2)};
  const bool has_largest = random.one_in(2);
  const Sgd sgd{.lr = 0.1,
                .momentum = random.one_in(2) ? 0.9 : 0,
                .dampening = 0.25,
                .weight_decay = 0.01,
                .nesterov = random.one_in(2),
                .maximize = random.one_in(2)};
  const Lion lion{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .maximize = random.one_in(2)};
  expect_step(
      start, seed, "adamw",
      [&](Case<T>& c, int64_t i) {
        adamw_oracle(adamw, c.p[i], c.g[i], c.m[i], c.v[i], has_largest ? &c.largest[i] : nullptr);
      },
      [&](Case<T>& c, int64_t at, int64_t count) {
        adamw_step(adamw, count, c.p.data() + at, c.g.data() + at, c.m.data() + at, c.v.data() + at,
                   has_largest ? c.largest.data() + at : nullptr);
      });
  expect_step(
      start, seed, "sgd", [&](Case<T>& c, int64_t i) { sgd_oracle(sgd, c.p[i], c.g[i], c.m[i]); },
      [&](Case<T>& c, int64_t at, int64_t count) {
        sgd_step(sgd, count, c.p.data() + at, c.g.data() + at, c.m.data() + at);
      });
  expect_step(
      start, seed, "lion", [&](Case<T>& c, int64_t i) { lion_oracle(lion, c.p[i], c.g[i], c.m[i]); },
      [&](Case<T>& c, int64_t at, int64_t count) {
        lion_step(lion, count, c.p.data() + at, c.g.data() + at, c.m.data() + at);
      });
  expect_step(
      start, seed, "ema",
      [&](Case<T>& c, int64_t i) { c.m[i] = std::fma(static_cast<T>(1 - 0.99), c.p[i] - c.m[i], c.m[i]); },
      [&](Case<T>& c, int64_t at, int64_t count) { ema_step(0.99, count, c.m.data() + at, c.p.data() + at); });
}

TEST(Optimizer, SlicesGiveTheFormulasOfTheWhole) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    expect_optimizers<float>(seed);
    expect_optimizers<double>(seed);
    if (HasFailure()) {
      return;
    }
  }
}

TEST(Optimizer, ANanOfTheLargestSquareStays) {
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    std::vector<float> p(20, 1), g(20, 1), m(20), v(20), largest(20);
    largest[3] = NAN, g[7] = NAN;
    adamw_step({}, 20, p.data(), g.data(), m.data(), v.data(), largest.data());
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(std::isnan(largest[i]) && std::isnan(p[i]), i == 3 || i == 7) << i << " on " << name_of(isa);
    }
  }
}

// Twenty steps beside torch's own fused AdamW.
TEST(Optimizer, AdamWIsCloseToLibtorch) {
  Random random(1);
  const int64_t n = 333;
  std::vector<float> p = random.normal<float>(n), m(n), v(n);
  const auto tensor = [&](const std::vector<float>& values) {
    return at::from_blob(const_cast<float*>(values.data()), {n}).clone().to(at::kDouble);
  };
  at::Tensor want = tensor(p), average = tensor(m), square = tensor(v);
  for (int64_t step = 1; step <= 20; ++step) {
    const std::vector<float> g = random.normal<float>(n);
    adamw_step({.lr = 1e-2, .weight_decay = 0.1, .step = step}, n, p.data(), g.data(), m.data(), v.data());
    at::_fused_adamw_({want}, {tensor(g)}, {average}, {square}, {}, {at::full({}, static_cast<double>(step))}, 1e-2,
                      0.9, 0.999, 0.1, 1e-8, false, false);
  }
  EXPECT_TRUE(at::allclose(tensor(p), want, 1e-5, 1e-6));
}

// --- eight bits

// The table by its definition, and the nearest value by looking at all.
std::vector<double> code_values(bool has_negatives) {
  std::vector<double> values = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int steps = 1 << (has_negatives ? i : i + 1);
    for (int k = 0; k < steps; ++k) {
      const double middle = std::pow(10.0, i - 6) * (0.1 + 0.9 * (k + 0.5) / steps);
      values.push_back(middle);
      if (has_negatives) {
        values.push_back(-middle);
      }
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

TEST(Adamw8bit, CodesStandForTheDynamicTable) {
  for (const bool has_negatives : {true, false}) {
    const auto want = code_values(has_negatives);
    const CodeValues& got = has_negatives ? signed_code_values() : unsigned_code_values();
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-7 * std::abs(want[i])) << i;
    }
  }
}

// Moments of [rows, columns] in eight bits.
struct State8bit {
  State8bit(int64_t rows, int64_t columns)
      : codes(rows * columns), scales(rows * moment_blocks(columns)), square_codes(codes), square_scales(scales) {}
  Moment8bit average(int64_t element = 0, int64_t block = 0) { return {codes.data() + element, scales.data() + block}; }
  Moment8bit square(int64_t element = 0, int64_t block = 0) {
    return {square_codes.data() + element, square_scales.data() + block};
  }
  bool operator==(const State8bit&) const = default;

  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> square_codes;
  std::vector<float> square_scales;
};

// A moment's block by the definition: the nearest codes to its values over their largest magnitude.
void keep_oracle(const CodeValues& table, bool keeps_above_zero, const std::vector<float>& values, uint8_t* codes,
                 float* scale) {
  *scale = 0;
  for (float value : values) {
    *scale = std::max(*scale, std::abs(value));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = *scale > 0 ? values[i] / *scale : 0;
    size_t best = 0;
    for (size_t code = 1; code < table.size(); ++code) {
      const double middle = static_cast<float>((static_cast<double>(table[code - 1]) + table[code]) / 2);
      best = x > middle ? code : best;
    }
    codes[i] = static_cast<uint8_t>(keeps_above_zero && best == 0 && values[i] > 0 ? 1 : best);
  }
}

void step_oracle(const AdamW& o, int64_t rows, int64_t columns, std::vector<float>& p, const std::vector<float>& g,
                 State8bit& state) {
  const int64_t blocks = moment_blocks(columns);
  for (int64_t block = 0; block < rows * blocks; ++block) {
    const int64_t first = block % blocks * kMomentBlock, at = block / blocks * columns + first,
                  n = std::min(kMomentBlock, columns - first);
    std::vector<float> m(n), v(n);
    for (int64_t i = 0; i < n; ++i) {
      m[i] = signed_code_values()[state.codes[at + i]] * state.scales[block];
      v[i] = unsigned_code_values()[state.square_codes[at + i]] * state.square_scales[block];
      adamw_oracle(o, p[at + i], g[at + i], m[i], v[i]);
    }
    keep_oracle(signed_code_values(), false, m, &state.codes[at], &state.scales[block]);
    keep_oracle(unsigned_code_values(), true, v, &state.square_codes[at], &state.square_scales[block]);
  }
}

TEST(Adamw8bit, CutsOfRowsGiveTheDefinitionOfTheWhole) {
  for (uint64_t seed = 0; seed < (is_full() ? 400 : 60); ++seed) {
    Random random(seed);
    const int64_t rows = 1 + random.below(6), columns = 1 + random.below(600), cut = random.below(rows + 1);
    const std::vector<float> start = random.normal<float>(rows * columns);
    std::vector<std::vector<float>> gradients;
    for (int step = 0; step < 3; ++step) {
      gradients.push_back(random.normal<float>(rows * columns));
      for (float& value : gradients.back()) {
        value = random.one_in(5) ? 0 : value * value * value;  // of many sizes
      }
    }
    std::vector<float> want = start;
    State8bit want_state(rows, columns);
    AdamW options{.lr = 1e-2, .weight_decay = 0.1};
    for (options.step = 1; options.step <= 3; ++options.step) {
      step_oracle(options, rows, columns, want, gradients[options.step - 1], want_state);
    }
    for (Isa isa : supported_isas()) {
      const ScopedIsa scope(isa);
      std::vector<float> got = start;
      State8bit state(rows, columns);
      for (options.step = 1; options.step <= 3; ++options.step) {
        for (const auto& [row, count] : {std::pair(int64_t{0}, cut), std::pair(cut, rows - cut)}) {
          const int64_t at = row * columns, block = row * moment_blocks(columns);
          adamw_8bit_step(options, count, columns, got.data() + at, gradients[options.step - 1].data() + at,
                          state.average(at, block), state.square(at, block));
        }
      }
      ASSERT_EQ(first_difference(got, want), -1) << name_of(isa) << ", seed " << seed;
      ASSERT_TRUE(state == want_state) << name_of(isa) << ", seed " << seed;
    }
  }
}

// Errors of a moment are within half a step of the table, so that a step is close to that of whole moments.
TEST(Adamw8bit, IsCloseToWholeMoments) {
  Random random(3);
  const int64_t n = 4 * 256;
  const std::vector<float> start = random.normal<float>(n);
  std::vector<float> whole = start, eighth = start, m(n), v(n);
  State8bit state(4, 256);
  for (int64_t step = 1; step <= 50; ++step) {
    const std::vector<float> g = random.normal<float>(n);
    adamw_step({.step = step}, n, whole.data(), g.data(), m.data(), v.data());
    adamw_8bit_step({.step = step}, 4, 256, eighth.data(), g.data(), state.average(), state.square());
  }
  double moved = 0, apart = 0;
  for (int64_t i = 0; i < n; ++i) {
    moved += std::abs(whole[i] - start[i]), apart += std::abs(eighth[i] - whole[i]);
  }
  EXPECT_LT(apart, 0.05 * moved);
  EXPECT_GT(apart, 0);
}

TEST(Adamw8bit, ASquareAboveZeroStaysSo) {
  std::vector<float> p(256), g(256, 1e-6f);
  g[0] = 1;
  State8bit state(1, 256);
  adamw_8bit_step({}, 1, 256, p.data(), g.data(), state.average(), state.square());
  EXPECT_EQ(std::count(state.square_codes.begin(), state.square_codes.end(), 0), 0);
  const std::vector<float> before = p;
  std::fill(g.begin(), g.end(), 0.0f);
  adamw_8bit_step({.step = 2}, 1, 256, p.data(), g.data(), state.average(), state.square());
  for (size_t i = 0; i < p.size(); ++i) {
    EXPECT_LT(std::abs(p[i] - before[i]), 2e-3) << i;
  }
}

TEST(Adamw8bit, WhatIsNotFiniteIsNotLost) {
  for (const float odd : {NAN, INFINITY}) {
    std::vector<float> p(256), g(256, 1);
    g[9] = odd;
    State8bit state(1, 256);
    adamw_8bit_step({}, 1, 256, p.data(), g.data(), state.average(), state.square());
    std::fill(g.begin(), g.end(), 1.0f);
    adamw_8bit_step({.step = 2}, 1, 256, p.data(), g.data(), state.average(), state.square());
    EXPECT_TRUE(std::isnan(p[9]) && std::isnan(p[200])) << odd;
  }
}

}  // namespace

}  // namespace tessera::kernels::optimizer_test
