// Attention by blocks has the bits of its parts run whole: products, softmax rows, products.
#include "tessera/kernels/attention/attention.h"

#include <cmath>
#include <memory>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include "arrays.h"
#include "tessera/base/error.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/product/product.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::kernels::attention_test {

using namespace tessera::kernels::test;

namespace {

enum class Mask { kNone, kCausal, kAllowed, kAdded };

// [batch, heads, positions, width] somewhere in memory, in either order of heads and positions, with gaps or none.
template <typename T>
struct Tensor {
  int64_t batch = 0, heads = 0, rows = 0, width = 0;
  Heads<T> view;
  std::unique_ptr<T[]> memory;

  Tensor() = default;
  Tensor(Random& random, int64_t b, int64_t h, int64_t p, int64_t w) : batch(b), heads(h), rows(p), width(w) {
    const int64_t gap = random.one_in(2) ? 0 : random.below(9);
    const bool heads_inside = random.one_in(2);
    view.row = heads_inside ? h * w + gap : w + gap;
    view.head = heads_inside ? w : p * view.row;
    view.batch = heads_inside ? p * view.row : h * view.head;
    const auto size = static_cast<size_t>(b * view.batch + gap + 1);
    memory = std::make_unique<T[]>(size);
    std::fill_n(memory.get(), size, static_cast<T>(NAN));
    view.data = memory.get() + gap;
  }

  Heads<const T> in() const { return {view.data, view.batch, view.head, view.row}; }

  template <typename Body>
  void each(const Body& body) const {
    for (int64_t i = 0; i < batch * heads * rows * width; ++i) {
      body(view.at(i / (heads * rows * width), i / (rows * width) % heads, i / width % rows)[i % width]);
    }
  }
  std::vector<T> values() const {
    std::vector<T> all;
    each([&](T value) { all.push_back(value); });
    return all;
  }
};

template <typename T>
struct Case {
  AttentionShape shape;
  Mask mask = Mask::kNone;
  Tensor<T> q, k, v, grad, added, keep;
  Tensor<bool> allowed;
  Attention<T> call;
  int64_t query_leaf = 0, group_leaf = 0;
};

int64_t some_size(Random& random, int64_t most) {
  return random.one_in(3) ? 1 + random.below(most) : 1 + random.below(40);
}

template <typename T>
void fill(Random& random, const Tensor<T>& to, double scale, bool special) {
  const std::vector<T> values = random.normal<T>(to.batch * to.heads * to.rows * to.width, scale);
  size_t i = 0;
  to.each([&](T& value) {
    value = values[i++];
    if (!special) {
      return;
    }
    if (random.one_in(4)) {
      value *= static_cast<T>(sizeof(T) == 4 ? 1e-30 : 1e-250);
    }
    if (random.one_in(9)) {
      value = static_cast<T>(random.one_in(2) ? -0.0 : 0.0);
    }
    if (random.one_in(2000)) {
      value = std::numeric_limits<T>::infinity() * (random.one_in(2) ? 1 : -1);
    }
    if (random.one_in(4000)) {
      value = static_cast<T>(NAN);
    }
  });
}

template <typename T>
void make_mask(Random& random, Case<T>& c) {
  const AttentionShape& s = c.shape;
  c.call.is_causal = c.mask == Mask::kCausal;
  const bool alike = random.one_in(2);  // for all samples and heads
  if (c.mask == Mask::kAllowed) {
    c.allowed = Tensor<bool>(random, s.batch, s.heads, s.queries, s.keys);
    const int64_t blind = random.below(2 * s.queries);
    for (int64_t i = 0; i < s.batch * s.heads * s.queries; ++i) {
      for (int64_t j = 0; j < s.keys; ++j) {
        c.allowed.view.at(i / (s.heads * s.queries), i / s.queries % s.heads, i % s.queries)[j] =
            !random.one_in(3) && i % s.queries != blind;
      }
    }
    c.call.allowed = c.allowed.in();
    if (alike) {
      c.call.allowed.batch = c.call.allowed.head = 0;
    }
  }
  if (c.mask == Mask::kAdded) {
    c.added = Tensor<T>(random, s.batch, s.heads, s.queries, s.keys);
    fill(random, c.added, 1, false);
    const bool blinds = random.one_in(2);
    c.added.each([&](T& value) {
      value = blinds && random.one_in(s.keys < 6 ? 2 : 4) ? -std::numeric_limits<T>::infinity() : value;
    });
    c.call.added = c.added.in();
    if (alike) {
      c.call.added.batch = c.call.added.head = 0;
    }
  }
  if (random.one_in(3)) {
    c.keep = Tensor<T>(random, s.batch, s.heads, s.queries, s.keys);
    c.keep.each([&](T& value) { value = random.one_in(5) ? T(0) : T(1.25); });
    c.call.keep = c.keep.in();
  }
}

template <typename T>
Case<T> make_case(uint64_t seed) {
  Random random(seed);
  Case<T> c;
  const int64_t key_heads = 1 + random.below(2), times = random.one_in(2) ? 1 : 1 + random.below(20),
                most = times == 1 ? 600 : 60;
  c.shape = {1 + random.below(2),
             key_heads * times,
             key_heads,
             some_size(random, most),
             0,
             1 + random.below(random.one_in(8) ? 300 : 40),
             1 + random.below(40)};
  c.shape.keys = random.one_in(2) ? c.shape.queries : some_size(random, most);
  const AttentionShape& s = c.shape;
  c.q = Tensor<T>(random, s.batch, s.heads, s.queries, s.width);
  c.k = Tensor<T>(random, s.batch, s.key_heads, s.keys, s.width);
  c.v = Tensor<T>(random, s.batch, s.key_heads, s.keys, s.value_width);
  c.grad = Tensor<T>(random, s.batch, s.heads, s.queries, s.value_width);
  const bool special = random.one_in(3);
  const double scale = random.one_in(4) ? 12 : 1;  // weights that underflow
  for (const Tensor<T>* x : {&c.q, &c.k, &c.v, &c.grad}) {
    fill(random, *x, scale, special);
  }
  c.mask = static_cast<Mask>(random.below(4));
  c.call = {.shape = s,
            .q = c.q.in(),
            .k = c.k.in(),
            .v = c.v.in(),
            .scale = random.one_in(9) ? -0.4 : 1 / std::sqrt(static_cast<double>(s.width)),
            .key_leaf = random.one_in(2) ? 0 : (s.keys + 3) / 4};
  make_mask(random, c);
  c.query_leaf = random.one_in(2) ? 0 : (s.queries + 3) / 4;
  c.group_leaf = random.one_in(2) ? 0 : (times + 7) / 8;
  return c;
}

// The parts, one head at a time and whole.
template <typename T>
struct Whole {
  std::vector<T> weights, kept, slopes;
  std::vector<T> out, dq, dk, dv;
};

template <typename T>
std::vector<T> times(int64_t m, int64_t n, int64_t k, Matrices<const T> a, Matrices<const T> b, int64_t leaf) {
  std::vector<T> out(static_cast<size_t>(m * n));
  run_product(Product<T>{.m = m, .n = n, .k = k, .a = a, .b = b, .out = {out.data(), n, 1}, .leaf = leaf});
  return out;
}

template <typename T>
bool is_hidden(const Case<T>& c, int64_t b, int64_t h, int64_t i, int64_t j) {
  return (c.mask == Mask::kCausal && j > i) || (c.mask == Mask::kAllowed && !c.call.allowed.at(b, h, i)[j]);
}

template <typename T>
void weigh(const Case<T>& c, int64_t b, int64_t h, Whole<T>& w) {
  const AttentionShape& s = c.shape;
  const int64_t kh = h / (s.heads / s.key_heads), n = s.keys;
  w.weights =
      times<T>(s.queries, n, s.width, {c.call.q.at(b, h), c.call.q.row, 1}, {c.call.k.at(b, kh), 1, c.call.k.row}, 0);
  std::vector<char> blind(static_cast<size_t>(s.queries), c.mask == Mask::kAllowed || c.mask == Mask::kAdded);
  for (int64_t i = 0; i < s.queries * n; ++i) {
    T& x = w.weights[static_cast<size_t>(i)];
    x *= static_cast<T>(c.call.scale);
    if (c.mask == Mask::kAdded) {
      x += c.call.added.at(b, h, i / n)[i % n];
    }
    if (is_hidden(c, b, h, i / n, i % n)) {
      x = -std::numeric_limits<T>::infinity();
    }
    if (x != -std::numeric_limits<T>::infinity()) {
      blind[static_cast<size_t>(i / n)] = 0;
    }
  }
  softmax<T>({s.queries, n}, {w.weights.data(), n}, {w.weights.data(), n});
  for (int64_t i = 0; i < s.queries * n; ++i) {
    if (blind[static_cast<size_t>(i / n)]) {
      w.weights[static_cast<size_t>(i)] = 0;
    }
  }
  w.kept = w.weights;
  for (int64_t i = 0; i < s.queries * n && c.call.keep.data != nullptr; ++i) {
    w.kept[static_cast<size_t>(i)] *= c.call.keep.at(b, h, i / n)[i % n];
  }
}

template <typename T>
Whole<T> run_whole(const Case<T>& c, int64_t b, int64_t h) {
  Whole<T> w;
  weigh(c, b, h, w);
  const AttentionShape& s = c.shape;
  const int64_t kh = h / (s.heads / s.key_heads), n = s.keys;
  const Matrices<const T> q{c.call.q.at(b, h), c.call.q.row, 1}, k{c.call.k.at(b, kh), c.call.k.row, 1},
      v{c.call.v.at(b, kh), c.call.v.row, 1}, g{c.grad.in().at(b, h), c.grad.view.row, 1}, v_t{v.data, 1, v.row};
  w.out = times<T>(s.queries, s.value_width, n, {w.kept.data(), n, 1}, v, c.call.key_leaf);
  w.slopes = times<T>(s.queries, n, s.value_width, g, v_t, 0);
  for (int64_t i = 0; i < s.queries * n && c.call.keep.data != nullptr; ++i) {
    w.slopes[static_cast<size_t>(i)] *= c.call.keep.at(b, h, i / n)[i % n];
  }
  softmax_backward<T>({s.queries, n}, {w.slopes.data(), n}, {w.weights.data(), n}, {w.slopes.data(), n});
  for (int64_t i = 0; i < s.queries * n; ++i) {
    T& x = w.slopes[static_cast<size_t>(i)];
    if (is_hidden(c, b, h, i / n, i % n)) {
      x = 0;
    }
    x *= static_cast<T>(c.call.scale);
  }
  w.dq = times<T>(s.queries, s.width, n, {w.slopes.data(), n, 1}, k, c.call.key_leaf);
  w.dk = times<T>(n, s.width, s.queries, {w.slopes.data(), 1, n}, q, c.query_leaf);
  w.dv = times<T>(n, s.value_width, s.queries, {w.kept.data(), 1, n}, g, c.query_leaf);
  return w;
}

template <typename T>
struct Results {
  std::vector<T> out, dq, dk, dv;
};

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// The parts of a group's heads, added as rows.
template <typename T>
std::vector<T> add_heads(const Case<T>& c, const std::vector<std::vector<T>>& parts) {
  const auto n = static_cast<int64_t>(parts[0].size()), heads = static_cast<int64_t>(parts.size());
  if (heads == 1) {
    return parts[0];
  }
  std::vector<T> rows, sums(parts[0].size());
  for (size_t i = 0; i < parts[0].size(); ++i) {
    for (const std::vector<T>& part : parts) {
      rows.push_back(part[i]);
    }
  }
  row_sum<T>({n, heads}, c.group_leaf == 0 ? kWholeRow : c.group_leaf, {rows.data(), heads}, sums.data());
  return sums;
}

template <typename T>
Results<T> run_parts(const Case<T>& c) {
  const AttentionShape& s = c.shape;
  Results<T> all;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t kh = 0; kh < s.key_heads; ++kh) {
      std::vector<std::vector<T>> dk, dv;
      for (int64_t h = kh * (s.heads / s.key_heads); h < (kh + 1) * (s.heads / s.key_heads); ++h) {
        const Whole<T> w = run_whole(c, b, h);
        append(all.out, w.out);
        append(all.dq, w.dq);
        dk.push_back(w.dk);
        dv.push_back(w.dv);
      }
      append(all.dk, add_heads(c, dk));
      append(all.dv, add_heads(c, dv));
    }
  }
  return all;
}

template <typename T>
Results<T> run_fused(const Case<T>& c) {
  const AttentionShape& s = c.shape;
  Random random(1);
  const Tensor<T> out(random, s.batch, s.heads, s.queries, s.value_width),
      dq(random, s.batch, s.heads, s.queries, s.width), dk(random, s.batch, s.key_heads, s.keys, s.width),
      dv(random, s.batch, s.key_heads, s.keys, s.value_width);
  attention(c.call, out.view);
  attention_backward(
      c.call, c.grad.in(),
      {.q = dq.view, .k = dk.view, .v = dv.view, .query_leaf = c.query_leaf, .group_leaf = c.group_leaf});
  return {out.values(), dq.values(), dk.values(), dv.values()};
}

template <typename T>
void expect_same(const Results<T>& got, const Results<T>& want, const std::string& what) {
  EXPECT_EQ(first_difference(got.out, want.out), -1) << "out, " << what;
  EXPECT_EQ(first_difference(got.dq, want.dq), -1) << "dq, " << what;
  EXPECT_EQ(first_difference(got.dk, want.dk), -1) << "dk, " << what;
  EXPECT_EQ(first_difference(got.dv, want.dv), -1) << "dv, " << what;
}

template <typename T>
void expect_parts(uint64_t seed) {
  const Case<T> c = make_case<T>(seed);
  const AttentionShape& s = c.shape;
  const std::string what =
      c10::str("seed ", seed, ", ", sizeof(T), " bytes: ", s.batch, " x ", s.heads, "/", s.key_heads, " x ", s.queries,
               " x ", s.keys, " x ", s.width, "/", s.value_width, ", mask ", static_cast<int>(c.mask));
  const Results<T> want = run_parts(c);
  for (Isa isa : supported_isas()) {
    if (isa == Isa::kScalar && s.batch * s.heads * s.queries * s.keys * s.width > 1'000'000) {
      continue;  // slow
    }
    const ScopedIsa scope(isa);
    expect_same(run_fused(c), want, what + " on " + name_of(isa));
  }
}

TEST(Attention, HasTheBitsOfItsParts) {
  for (uint64_t seed = 0; seed < (is_full() ? 3000 : 60); ++seed) {
    expect_parts<float>(seed);
    expect_parts<double>(seed);
    if (HasFailure()) {
      return;
    }
  }
}

// Plain rows, for tests of values.
template <typename T>
Case<T> dense_case(AttentionShape shape, Mask mask) {
  Case<T> c;
  Random random(7);
  c.shape = shape;
  c.q = Tensor<T>(random, shape.batch, shape.heads, shape.queries, shape.width);
  c.k = Tensor<T>(random, shape.batch, shape.key_heads, shape.keys, shape.width);
  c.v = Tensor<T>(random, shape.batch, shape.key_heads, shape.keys, shape.value_width);
  c.grad = Tensor<T>(random, shape.batch, shape.heads, shape.queries, shape.value_width);
  for (const Tensor<T>* x : {&c.q, &c.k, &c.v, &c.grad}) {
    fill(random, *x, 1, false);
  }
  c.mask = mask;
  c.call = {.shape = shape,
            .q = c.q.in(),
            .k = c.k.in(),
            .v = c.v.in(),
            .scale = 1 / std::sqrt(static_cast<double>(shape.width)),
            .is_causal = mask == Mask::kCausal};
  return c;
}

at::Tensor tensor_of(const Tensor<double>& x) {
  const std::vector<double> values = x.values();
  return at::tensor(values).view({x.batch, x.heads, x.rows, x.width});
}

void expect_close(const std::vector<double>& got, const at::Tensor& want, const char* what) {
  EXPECT_LT((at::tensor(got) - want.flatten()).abs().max().item<double>(), 1e-12) << what;
}

TEST(Attention, IsLibtorchsFunctionAndGradient) {
  for (Mask mask : {Mask::kNone, Mask::kCausal}) {
    const Case<double> c = dense_case<double>({2, 6, 2, 70, 70, 16, 24}, mask);
    const Results<double> got = run_fused(c);
    at::Tensor q = tensor_of(c.q).requires_grad_(), k = tensor_of(c.k).requires_grad_(),
               v = tensor_of(c.v).requires_grad_();
    at::Tensor scores = at::matmul(q, k.repeat_interleave(3, 1).transpose(-2, -1)) / 4.0;
    if (mask == Mask::kCausal) {
      scores = scores.masked_fill(at::ones({70, 70}, at::kBool).triu(1), -INFINITY);
    }
    const at::Tensor out = at::matmul(at::softmax(scores, -1), v.repeat_interleave(3, 1));
    out.backward(tensor_of(c.grad));
    expect_close(got.out, out.detach(), "out");
    expect_close(got.dq, q.grad(), "dq");
    expect_close(got.dk, k.grad(), "dk");
    expect_close(got.dv, v.grad(), "dv");
  }
}

// Heads, samples and query rows are dealt to threads; no sum is.
TEST(Attention, ThreadsDoNotEnter) {
  const Case<float> c = dense_case<float>({2, 4, 2, 300, 300, 32, 32}, Mask::kCausal);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Results<float> want = run_fused(c);
  at::set_num_threads(3);
  expect_same(run_fused(c), want, "3 threads");
  at::set_num_threads(threads);
}

// The control: other leaves are other sums.
TEST(Attention, LeavesOfOtherLengthsGiveOtherBits) {
  Case<float> c = dense_case<float>({1, 2, 2, 200, 200, 16, 16}, Mask::kNone);
  const Results<float> one = run_fused(c);
  c.call.key_leaf = 50;
  c.query_leaf = 50;
  const Results<float> four = run_fused(c);
  EXPECT_NE(first_difference(one.out, four.out), -1);
  EXPECT_NE(first_difference(one.dk, four.dk), -1);
  EXPECT_NE(first_difference(one.dv, four.dv), -1);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  Case<float> c = dense_case<float>({1, 4, 2, 3, 3, 4, 4}, Mask::kCausal);
  c.call.shape.key_heads = 3;
  EXPECT_THROW(run_fused(c), c10::Error);
  c.call.shape.key_heads = 2;
  c.call.added = c.q.in();
  EXPECT_THROW(run_fused(c), c10::Error);
}

}  // namespace

}  // namespace tessera::kernels::attention_test
