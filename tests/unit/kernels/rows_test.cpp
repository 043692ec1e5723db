// Row kernels: the oracle's bits on every instruction set, at every place in memory, for every range of rows and any
// threads.
#include <gtest/gtest.h>

#include <functional>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include "arrays.h"
#include "rows_oracle.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/maps/elementwise.h"
#include "tessera/kernels/rows/cross_entropy.h"
#include "tessera/kernels/rows/norms.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::kernels::rows_test {

using namespace tessera::kernels::test;

namespace {

// Values for every kernel: rows of x, grad and y, and what a row or a column has.
template <typename T>
struct Values {
  Shape shape;
  int64_t leaf;
  std::vector<T> x, grad, y, weight, bias, mean, rstd, max, sum, row_grad;
  std::vector<int64_t> target;

  oracle::Row<T> row(const std::vector<T>& of, int64_t r) const {
    return {of.begin() + r * shape.n, of.begin() + (r + 1) * shape.n};
  }
};

template <typename T>
Values<T> random_values(Random& random, Shape shape) {
  const int64_t all = shape.rows * shape.n;
  Values<T> v;
  v.shape = shape;
  v.leaf = random.one_in(2) ? kWholeRow : 1 + random.below(shape.n + 3);
  v.x = random.normal<T>(all, 3);
  v.grad = random.normal<T>(all);
  v.y = random.normal<T>(all);
  v.weight = random.normal<T>(shape.n);
  v.bias = random.normal<T>(shape.n);
  v.mean = random.normal<T>(shape.rows);
  v.rstd = random.normal<T>(shape.rows);
  v.max = random.normal<T>(shape.rows);
  v.sum = random.normal<T>(shape.rows);
  v.row_grad = random.normal<T>(shape.rows);
  for (int64_t r = 0; r < shape.rows; ++r) {
    v.target.push_back(random.one_in(4) ? -100 : random.below(shape.n));
  }
  return v;
}

// Where the arrays of one call lie, and which rows it does.
template <typename T>
struct Call {
  Call(Random& random, const Values<T>& values, int64_t begin, int64_t count)
      : v(values),
        begin(begin),
        shape{count, values.shape.n},
        leaf(values.leaf),
        x(random, shape, slice(values.x)),
        grad(random, shape, slice(values.grad)),
        y(random, shape, slice(values.y)),
        out(random, shape) {}

  std::vector<T> slice(const std::vector<T>& of) const {
    return {of.begin() + begin * v.shape.n, of.begin() + (begin + shape.rows) * v.shape.n};
  }
  std::vector<T> scalars() const { return std::vector<T>(static_cast<size_t>(shape.rows)); }

  const Values<T>& v;
  int64_t begin;
  Shape shape;
  int64_t leaf;
  Placed<T> x, grad, y, out;
};

template <typename T>
std::vector<T> joined(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The kernel of several rows, and the oracle of one: the kernel's result is its parts one after the other, each with
// the same number of values for each row.
template <typename T>
struct Case {
  const char* name;
  std::function<std::vector<std::vector<T>>(Call<T>&)> kernel;
  std::function<std::vector<std::vector<T>>(const Values<T>&, int64_t)> oracle;
};

template <typename T>
T one(Function function, T x) {
  T y = 0;
  map(function, 1, &x, &y);
  return y;
}

template <typename T>
std::vector<Case<T>> sum_cases() {
  using C = Call<T>;
  using V = Values<T>;
  using Parts = std::vector<std::vector<T>>;
  const auto exp = [](T x) { return one(Function::kExp, x); };
  const auto scalar = [](auto run) {
    return [run](C& c) {
      std::vector<T> out = c.scalars();
      run(c, out.data());
      return Parts{out};
    };
  };
  return {
      {"row_sum", scalar([](C& c, T* out) { row_sum(c.shape, c.leaf, c.x.in(), out); }),
       [](const V& v, int64_t r) { return Parts{{oracle::sum(v.row(v.x, r), v.leaf)}}; }},
      {"row_mean", scalar([](C& c, T* out) { row_mean(c.shape, c.leaf, c.x.in(), out); }),
       [](const V& v, int64_t r) { return Parts{{oracle::sum(v.row(v.x, r), v.leaf) / static_cast<T>(v.shape.n)}}; }},
      {"row_squares", scalar([](C& c, T* out) { row_squares(c.shape, c.leaf, c.x.in(), out); }),
       [](const V& v, int64_t r) { return Parts{{oracle::dot(v.row(v.x, r), v.row(v.x, r), v.leaf)}}; }},
      {"row_max", scalar([](C& c, T* out) { row_max(c.shape, c.x.in(), out); }),
       [](const V& v, int64_t r) { return Parts{{oracle::max(v.row(v.x, r))}}; }},
      {"row_exp_sum",
       scalar([](C& c, T* out) { row_exp_sum(c.shape, c.leaf, c.x.in(), c.v.max.data() + c.begin, out); }),
       [=](const V& v, int64_t r) {
         return Parts{{oracle::exp_sum<T>(v.row(v.x, r), v.max[static_cast<size_t>(r)], v.leaf, exp)}};
       }},
  };
}

template <typename T>
std::vector<Case<T>> softmax_cases() {
  using C = Call<T>;
  using V = Values<T>;
  using Parts = std::vector<std::vector<T>>;
  const auto exp = [](T x) { return one(Function::kExp, x); };
  const auto log = [](T x) { return one(Function::kLog, x); };
  const auto rows = [](auto run) {
    return [run](C& c) {
      run(c);
      return Parts{c.out.values()};
    };
  };
  return {
      {"softmax", rows([](C& c) { softmax(c.shape, c.x.in(), c.out.out()); }),
       [=](const V& v, int64_t r) { return Parts{oracle::softmax<T>(v.row(v.x, r), exp)}; }},
      {"log_softmax", rows([](C& c) { log_softmax(c.shape, c.x.in(), c.out.out()); }),
       [=](const V& v, int64_t r) { return Parts{oracle::log_softmax<T>(v.row(v.x, r), exp, log)}; }},
      {"softmax_backward", rows([](C& c) { softmax_backward(c.shape, c.grad.in(), c.y.in(), c.out.out()); }),
       [](const V& v, int64_t r) { return Parts{oracle::softmax_backward(v.row(v.grad, r), v.row(v.y, r))}; }},
      {"log_softmax_backward", rows([](C& c) { log_softmax_backward(c.shape, c.grad.in(), c.y.in(), c.out.out()); }),
       [=](const V& v, int64_t r) {
         return Parts{oracle::log_softmax_backward<T>(v.row(v.grad, r), v.row(v.y, r), exp)};
       }},
      {"cross_entropy",
       [](C& c) {
         Parts out{c.scalars(), c.scalars(), c.scalars()};
         cross_entropy(c.shape, c.leaf, c.x.in(), c.v.target.data() + c.begin, out[0].data(), out[1].data(),
                       out[2].data());
         return out;
       },
       [=](const V& v, int64_t r) {
         const oracle::Row<T> x = v.row(v.x, r);
         const int64_t target = v.target[static_cast<size_t>(r)];
         const T max = oracle::max(x);
         const T sum = oracle::exp_sum<T>(x, max, v.leaf, exp);
         return Parts{{target < 0 ? T(0) : log(sum) - (x[static_cast<size_t>(target)] + T(0) - max)}, {max}, {sum}};
       }},
      {"cross_entropy_backward", rows([](C& c) {
         cross_entropy_backward(c.shape, c.x.in(), c.v.max.data() + c.begin, c.v.sum.data() + c.begin,
                                c.v.target.data() + c.begin, 0, c.v.row_grad.data() + c.begin, c.out.out());
       }),
       [=](const V& v, int64_t r) {
         const size_t i = static_cast<size_t>(r);
         if (v.target[i] < 0) {
           return Parts{oracle::Row<T>(static_cast<size_t>(v.shape.n), T(0))};
         }
         return Parts{
             oracle::cross_entropy_backward<T>(v.row(v.x, r), v.max[i], v.sum[i], v.target[i], v.row_grad[i], exp)};
       }},
  };
}

template <typename T>
std::vector<Case<T>> norm_cases(bool weighted) {
  using C = Call<T>;
  using V = Values<T>;
  using Parts = std::vector<std::vector<T>>;
  const double eps = 1e-5;
  const auto weight = [=](const V& v) { return weighted ? v.weight : std::vector<T>(); };
  const auto bias = [=](const V& v) { return weighted ? v.bias : std::vector<T>(); };
  const auto at = [=](const std::vector<T>& of) { return weighted ? of.data() : nullptr; };
  return {
      {"rms_norm",
       [=](C& c) {
         std::vector<T> rstd = c.scalars();
         rms_norm(c.shape, c.x.in(), at(c.v.weight), eps, c.out.out(), rstd.data());
         return Parts{c.out.values(), rstd};
       },
       [=](const V& v, int64_t r) {
         const oracle::Normed<T> out = oracle::rms_norm<T>(v.row(v.x, r), weight(v), static_cast<T>(eps));
         return Parts{out.y, {out.rstd}};
       }},
      {"rms_norm_backward",
       [=](C& c) {
         rms_norm_backward(c.shape, c.grad.in(), c.x.in(), at(c.v.weight), c.v.rstd.data() + c.begin, c.out.out());
         return Parts{c.out.values()};
       },
       [=](const V& v, int64_t r) {
         return Parts{
             oracle::rms_norm_backward<T>(v.row(v.grad, r), v.row(v.x, r), weight(v), v.rstd[static_cast<size_t>(r)])};
       }},
      {"layer_norm",
       [=](C& c) {
         std::vector<T> mean = c.scalars(), rstd = c.scalars();
         layer_norm(c.shape, c.x.in(), at(c.v.weight), at(c.v.bias), eps, c.out.out(), mean.data(), rstd.data());
         return Parts{c.out.values(), mean, rstd};
       },
       [=](const V& v, int64_t r) {
         const oracle::Normed<T> out = oracle::layer_norm<T>(v.row(v.x, r), weight(v), bias(v), static_cast<T>(eps));
         return Parts{out.y, {out.mean}, {out.rstd}};
       }},
      {"layer_norm_backward",
       [=](C& c) {
         layer_norm_backward(c.shape, c.grad.in(), c.x.in(), at(c.v.weight), c.v.mean.data() + c.begin,
                             c.v.rstd.data() + c.begin, c.out.out());
         return Parts{c.out.values()};
       },
       [=](const V& v, int64_t r) {
         const size_t i = static_cast<size_t>(r);
         return Parts{oracle::layer_norm_backward<T>(v.row(v.grad, r), v.row(v.x, r), weight(v), v.mean[i], v.rstd[i])};
       }},
  };
}

template <typename T>
std::vector<Case<T>> all_cases() {
  std::vector<Case<T>> all = sum_cases<T>();
  for (const auto& more : {softmax_cases<T>(), norm_cases<T>(true), norm_cases<T>(false)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Of rows [begin, begin + count): the parts of the oracle, each for all rows.
template <typename T>
std::vector<std::vector<T>> expected(const Case<T>& c, const Values<T>& values, int64_t begin, int64_t count) {
  std::vector<std::vector<T>> all;
  for (int64_t r = begin; r < begin + count; ++r) {
    const auto parts = c.oracle(values, r);
    all.resize(parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      all[p] = joined(all[p], parts[p]);
    }
  }
  return all;
}

template <typename T>
void expect_oracle(const std::vector<Case<T>>& cases, uint64_t seed) {
  Random random(seed);
  const Shape shape{1 + random.below(9), 1 + random.below(random.one_in(10) ? 700 : 80)};
  const Values<T> values = random_values<T>(random, shape);
  for (const Case<T>& c : cases) {
    const auto whole = expected(c, values, 0, shape.rows);
    for (Isa isa : supported_isas()) {
      const ScopedIsa scope(isa);
      const int64_t begin = random.below(shape.rows);
      const int64_t count = 1 + random.below(shape.rows - begin);
      Call<T> call(random, values, begin, count);
      const auto got = c.kernel(call);
      ASSERT_EQ(got.size(), whole.size());
      for (size_t p = 0; p < got.size(); ++p) {
        const auto per_row = static_cast<int64_t>(whole[p].size()) / shape.rows;
        const std::vector<T> want(whole[p].begin() + begin * per_row, whole[p].begin() + (begin + count) * per_row);
        ASSERT_EQ(first_difference(got[p], want), -1)
            << c.name << " part " << p << " on " << name_of(isa) << ", rows of " << shape.n << " in leaves of "
            << values.leaf << ", seed " << seed;
      }
    }
  }
}

TEST(Rows, EqualTheOracleEverywhere) {
  const auto floats = all_cases<float>();
  const auto doubles = all_cases<double>();
  for (uint64_t seed = 0; seed < (is_full() ? 50000 : 3000); ++seed) {
    expect_oracle(floats, seed);
    expect_oracle(doubles, seed);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// Rows in two threads are the rows in one.
TEST(Rows, ThreadsDoNotEnter) {
  Random random(1);
  const Shape shape{300, 257};
  const Values<float> values = random_values<float>(random, shape);
  const int threads = at::get_num_threads();
  for (const Case<float>& c : all_cases<float>()) {
    Call<float> first(random, values, 0, shape.rows), second(random, values, 0, shape.rows);
    at::set_num_threads(1);
    const auto alone = c.kernel(first);
    at::set_num_threads(3);
    EXPECT_EQ(c.kernel(second), alone) << c.name;
  }
  at::set_num_threads(threads);
}

// A caller that flushes denormals gets them all the same.
TEST(Rows, CallersFloatEnvironmentDoesNotEnter) {
  Random random(7);
  const Shape shape{8, 50};
  Values<float> values = random_values<float>(random, shape);
  for (auto* of : {&values.x, &values.grad, &values.y}) {
    for (float& value : *of) {
      value *= 1e-39f;
    }
  }
  std::vector<Case<float>> cases = all_cases<float>();
  cases.push_back({"tree_sum",
                   [](Call<float>& c) { return std::vector<std::vector<float>>{{tree_sum(c.shape.n, c.x.in().data)}}; },
                   {}});
  for (const Case<float>& c : cases) {
    Call<float> first(random, values, 0, shape.rows), second(random, values, 0, shape.rows);
    const auto kept = c.kernel(first);
    at::globalContext().setFlushDenormal(true);
    const auto flushed = c.kernel(second);
    at::globalContext().setFlushDenormal(false);
    for (size_t p = 0; p < kept.size(); ++p) {
      EXPECT_EQ(first_difference(flushed[p], kept[p]), -1) << c.name;
    }
  }
}

// A vocabulary cut between leaves: the parts merge into the bits of the whole.
TEST(Rows, CutVocabularyGivesTheWhole) {
  Random random(2);
  const int64_t leaf = 13, n = 101, cut = 4 * leaf;  // 8 leaves; the two nodes of the root
  const Shape shape{20, n};
  Values<float> v = random_values<float>(random, shape);
  std::fill(v.x.begin() + 3 * n, v.x.begin() + 3 * n + cut, -INFINITY);  // one rank's part of a row is masked away
  v.x[static_cast<size_t>(5 * n)] = -0.0f;
  v.target[0] = 0, v.target[1] = cut - 1, v.target[2] = cut, v.target[4] = n - 1;  // the ends of both parts
  const Rows<const float> x{v.x.data(), n};
  std::vector<float> loss(20), max(20), sum(20);
  cross_entropy(shape, leaf, x, v.target.data(), loss.data(), max.data(), sum.data());
  std::vector<float> merged_max(20), merged_sum(20), merged_pick(20), merged_loss(20), a(20), b(20);
  const Shape left{20, cut}, right{20, n - cut};
  const Rows<const float> x_right{v.x.data() + cut, n};
  const auto merge = [&](std::vector<float>& out, const auto& combine) {
    for (size_t r = 0; r < 20; ++r) {
      out[r] = combine(a[r], b[r]);
    }
  };
  row_max(left, x, a.data()), row_max(right, x_right, b.data());
  merge(merged_max, [](float p, float q) { return std::max(q, p); });
  row_exp_sum(left, leaf, x, merged_max.data(), a.data()),
      row_exp_sum(right, leaf, x_right, merged_max.data(), b.data());
  merge(merged_sum, std::plus<float>());
  pick_targets(left, x, v.target.data(), 0, a.data()), pick_targets(right, x_right, v.target.data(), cut, b.data());
  merge(merged_pick, std::plus<float>());
  cross_entropy_loss(20, merged_max.data(), merged_sum.data(), merged_pick.data(), v.target.data(), merged_loss.data());
  EXPECT_EQ(merged_max, max);
  EXPECT_EQ(merged_sum, sum);
  EXPECT_EQ(first_difference(merged_loss, loss), -1);
  std::vector<float> whole(20 * n), parts(20 * n);
  cross_entropy_backward(shape, x, max.data(), sum.data(), v.target.data(), 0, v.row_grad.data(), {whole.data(), n});
  cross_entropy_backward(left, x, max.data(), sum.data(), v.target.data(), 0, v.row_grad.data(), {parts.data(), n});
  cross_entropy_backward(right, x_right, max.data(), sum.data(), v.target.data(), cut, v.row_grad.data(),
                         {parts.data() + cut, n});
  EXPECT_EQ(first_difference(whole, parts), -1);
}

// The control: sums in another order differ, so the comparisons above can fail.
TEST(Rows, OtherOrdersDiffer) {
  Random random(3);
  const int64_t rows = 100, n = 1000;
  const std::vector<float> x = random.normal<float>(rows * n);
  std::vector<float> leaves(rows), lanes(rows);
  row_sum<float>({rows, n}, 125, {x.data(), n}, leaves.data());
  row_sum<float>({rows, n}, kWholeRow, {x.data(), n}, lanes.data());
  int from_order = 0, from_lanes = 0;
  for (int64_t r = 0; r < rows; ++r) {
    float in_order = 0;
    for (int64_t i = 0; i < n; ++i) {
      in_order += x[static_cast<size_t>(r * n + i)];
    }
    const float sum = leaves[static_cast<size_t>(r)];
    EXPECT_NEAR(sum, in_order, 1e-3);
    from_order += sum != in_order;
    from_lanes += sum != lanes[static_cast<size_t>(r)];
  }
  EXPECT_GT(from_order, rows / 2);
  EXPECT_GT(from_lanes, rows / 4);
}

TEST(Rows, EmptyAndSpecialRows) {
  float sum = 1;
  row_sum<float>({1, 0}, kWholeRow, {nullptr, 0}, &sum);
  EXPECT_TRUE(same_bits(sum, 0.0f));
  row_max<float>({1, 0}, {nullptr, 0}, &sum);
  EXPECT_EQ(sum, -INFINITY);
  const std::vector<float> rows = {-INFINITY, 1, 2, -INFINITY, -INFINITY, -INFINITY, NAN, 1, 2, INFINITY, 1, 2};
  std::vector<float> y(12);
  softmax<float>({4, 3}, {rows.data(), 3}, {y.data(), 3});
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1] + y[2], 1, 1e-6);
  for (size_t i = 3; i < 12; ++i) {
    EXPECT_TRUE(std::isnan(y[i])) << i;
  }
  const std::vector<float> zeros = {-0.0f, -0.0f};
  row_max<float>({1, 2}, {zeros.data(), 2}, &sum);
  EXPECT_TRUE(same_bits(sum, 0.0f));
}

at::Tensor tensor(const std::vector<float>& values, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(values.data()), sizes).clone();
}

void expect_close(const char* name, const std::vector<float>& got, const at::Tensor& want) {
  ASSERT_EQ(static_cast<int64_t>(got.size()), want.numel());
  EXPECT_TRUE(at::allclose(tensor(got, want.sizes()).to(at::kDouble), want.to(at::kDouble), 2e-5, 2e-6)) << name;
}

// Against libtorch in double, so that the tolerance is our error alone.
TEST(Rows, CloseToLibtorch) {
  Random random(4);
  const Shape shape{7, 333};
  const Values<float> v = random_values<float>(random, shape);
  const at::Tensor x = tensor(v.x, {7, 333}).to(at::kDouble), grad = tensor(v.grad, {7, 333}).to(at::kDouble);
  const at::Tensor weight = tensor(v.weight, {333}).to(at::kDouble), bias = tensor(v.bias, {333}).to(at::kDouble);
  const Rows<const float> in{v.x.data(), 333}, g{v.grad.data(), 333};
  std::vector<float> y(7 * 333), dx(7 * 333), mean(7), rstd(7), dw(333), db(333);
  const Rows<float> out{y.data(), 333}, back{dx.data(), 333};

  softmax(shape, in, out);
  const at::Tensor probabilities = at::softmax(x, 1);
  expect_close("softmax", y, probabilities);
  softmax_backward(shape, g, {y.data(), 333}, back);
  expect_close("softmax_backward", dx, at::_softmax_backward_data(grad, probabilities, 1, at::kDouble));
  log_softmax(shape, in, out);
  expect_close("log_softmax", y, at::log_softmax(x, 1));
  log_softmax_backward(shape, g, {y.data(), 333}, back);
  expect_close("log_softmax_backward", dx, at::_log_softmax_backward_data(grad, at::log_softmax(x, 1), 1, at::kDouble));

  layer_norm(shape, in, v.weight.data(), v.bias.data(), 1e-5, out, mean.data(), rstd.data());
  const auto [normed, means, rstds] = at::native_layer_norm(x, {333}, weight, bias, 1e-5);
  expect_close("layer_norm", y, normed);
  layer_norm_backward(shape, g, in, v.weight.data(), mean.data(), rstd.data(), back);
  add_layer_norm_weight({1, 7}, 333, g, in, mean.data(), rstd.data(), dw.data());
  add_column_sum({1, 7}, 333, g, db.data());
  const auto [dxs, dws, dbs] =
      at::native_layer_norm_backward(grad, x, {333}, means, rstds, weight, bias, {true, true, true});
  expect_close("layer_norm_backward", dx, dxs);
  expect_close("layer_norm weight", dw, dws);
  expect_close("layer_norm bias", db, dbs);

  rms_norm(shape, in, v.weight.data(), 1e-5, out, rstd.data());
  const at::Tensor scale = at::rsqrt(at::mean(x * x, {1}, true) + 1e-5);
  expect_close("rms_norm", y, x * scale * weight);
  rms_norm_backward(shape, g, in, v.weight.data(), rstd.data(), back);
  const at::Tensor weighted = grad * weight;
  expect_close("rms_norm_backward", dx, weighted * scale - x * scale.pow(3) * at::mean(weighted * x, {1}, true));
}

// The bits of today. They change only with the definition.
TEST(Rows, GoldenBits) {
  Values<float> v = [] {
    Random random(5);
    return random_values<float>(random, {5, 203});
  }();
  auto fill = [n = uint64_t{0}](std::vector<float>& values) mutable {
    for (float& value : values) {
      value = static_cast<float>(static_cast<int64_t>(tessera::base::hash_mix(++n) >> 40)) * 0x1p-22f - 2;
    }
  };
  for (auto* values : {&v.x, &v.grad, &v.y, &v.weight, &v.bias, &v.mean, &v.rstd, &v.max, &v.sum, &v.row_grad}) {
    fill(*values);
  }
  v.leaf = 26;
  v.target = {3, 202, -100, 0, 7};
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    uint64_t hash = 0;
    Random random(6);
    for (const Case<float>& c : all_cases<float>()) {
      Call<float> call(random, v, 0, 5);
      for (const auto& part : c.kernel(call)) {
        hash = tessera::base::hash_combine(hash, hash_of(part));
      }
    }
    EXPECT_EQ(hash, 7095875292138030132u) << name_of(isa);
  }
}

}  // namespace

}  // namespace tessera::kernels::rows_test
