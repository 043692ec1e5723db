// Sums over tokens, embedding and the clip norm: pieces of them give the bits of the whole.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include "arrays.h"
#include "rows_oracle.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/maps/optimizer.h"
#include "tessera/kernels/rows/clip_norm.h"
#include "tessera/kernels/rows/embedding.h"
#include "tessera/kernels/rows/norms.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::kernels::updates_test {

using namespace tessera::kernels::test;

namespace {

// A batch of tokens with what sums over them take.
template <typename T>
struct Batch {
  Batch(Random& random)
      : samples{1 + random.below(4), 1 + random.below(9)},
        shape{samples.samples * samples.tokens, 1 + random.below(random.one_in(5) ? 400 : 70)},
        grad(random.normal<T>(shape.rows * shape.n)),
        x(random.normal<T>(shape.rows * shape.n)),
        mean(random.normal<T>(shape.rows)),
        rstd(random.normal<T>(shape.rows)),
        start(random.normal<T>(shape.n)) {}

  Samples samples;
  Shape shape;
  std::vector<T> grad, x, mean, rstd, start;
};

// The totals of the three sums over the samples [first, last) and columns [begin, end), onto totals that have begun.
template <typename T>
std::array<std::vector<T>, 3> totals(Random& random, const Batch<T>& b, int64_t first, int64_t last, int64_t begin,
                                     int64_t end, std::array<std::vector<T>, 3> onto) {
  const Placed<T> grad(random, b.shape, b.grad), x(random, b.shape, b.x);
  const int64_t row = first * b.samples.tokens;
  const Samples samples{last - first, b.samples.tokens};
  const Rows<const T> g{grad.in().row(row) + begin, grad.in().stride}, in{x.in().row(row) + begin, x.in().stride};
  add_column_sum(samples, end - begin, g, onto[0].data() + begin);
  add_rms_norm_weight(samples, end - begin, g, in, b.rstd.data() + row, onto[1].data() + begin);
  add_layer_norm_weight(samples, end - begin, g, in, b.mean.data() + row, b.rstd.data() + row, onto[2].data() + begin);
  return onto;
}

template <typename T>
std::array<std::vector<T>, 3> expected_totals(const Batch<T>& b) {
  std::array<std::vector<T>, 3> all{b.start, b.start, b.start};
  for (int64_t s = 0; s < b.samples.samples; ++s) {
    for (int64_t i = 0; i < b.shape.n; ++i) {
      oracle::Row<T> grads, scaled, centred;
      for (int64_t t = s * b.samples.tokens; t < (s + 1) * b.samples.tokens; ++t) {
        const size_t at = static_cast<size_t>(t * b.shape.n + i), token = static_cast<size_t>(t);
        grads.push_back(b.grad[at]);
        scaled.push_back(b.x[at] * b.rstd[token]);
        centred.push_back((b.x[at] - b.mean[token]) * b.rstd[token]);
      }
      const size_t column = static_cast<size_t>(i);
      all[0][column] = oracle::add_sample(all[0][column], grads, {});
      all[1][column] = oracle::add_sample(all[1][column], grads, scaled);
      all[2][column] = oracle::add_sample(all[2][column], grads, centred);
    }
  }
  return all;
}

template <typename T>
void expect_token_sums(uint64_t seed) {
  Random random(seed);
  const Batch<T> b(random);
  const auto want = expected_totals(b);
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    const int64_t sample = random.below(b.samples.samples + 1), column = random.below(b.shape.n + 1);
    std::array<std::vector<T>, 3> got{b.start, b.start, b.start};
    for (const auto& [first, last] :
         {std::pair(int64_t{0}, sample), std::pair(sample, b.samples.samples)}) {  // micro-batches
      got = totals(random, b, first, last, 0, column, got);
      got = totals(random, b, first, last, column, b.shape.n, got);
    }
    for (size_t k = 0; k < 3; ++k) {
      ASSERT_EQ(first_difference(got[k], want[k]), -1) << "sum " << k << " on " << name_of(isa) << ", seed " << seed;
    }
  }
}

TEST(TokenSums, MicroBatchesAndColumnsGiveTheOraclesWhole) {
  for (uint64_t seed = 0; seed < (is_full() ? 20000 : 1500); ++seed) {
    expect_token_sums<float>(seed);
    expect_token_sums<double>(seed);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// The control: one chain over all samples is another sum.
TEST(TokenSums, OneChainOverAllSamplesDiffers) {
  Random random(1);
  const int64_t n = 200;
  const std::vector<float> grad = random.normal<float>(8 * 16 * n);
  std::vector<float> by_sample(n), in_one(n);
  add_column_sum<float>({8, 16}, n, {grad.data(), n}, by_sample.data());
  add_column_sum<float>({1, 128}, n, {grad.data(), n}, in_one.data());
  int different = 0;
  for (size_t i = 0; i < by_sample.size(); ++i) {
    EXPECT_NEAR(by_sample[i], in_one[i], 1e-4);
    different += by_sample[i] != in_one[i];
  }
  EXPECT_GT(different, n / 4);
}

// Columns dealt to threads are the columns of one.
TEST(TokenSums, ThreadsDoNotEnter) {
  Random random(2);
  const int64_t n = 1000, rows = 4 * 64;
  const std::vector<float> grad = random.normal<float>(rows * n), x = random.normal<float>(rows * n),
                           scale = random.normal<float>(rows);
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    ids.push_back(random.below(30));
  }
  const int threads = at::get_num_threads();
  std::vector<std::vector<float>> sums, tables;
  for (int count : {1, 3}) {
    at::set_num_threads(count);
    sums.emplace_back(n), tables.emplace_back(30 * n);
    add_layer_norm_weight<float>({4, 64}, n, {grad.data(), n}, {x.data(), n}, scale.data(), scale.data(),
                                 sums.back().data());
    add_embedding_gradient<float>({4, 64}, n, ids.data(), {0, 30}, {grad.data(), n}, {tables.back().data(), n});
  }
  at::set_num_threads(threads);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(tables[0], tables[1]);
}

// --- embedding

template <typename T>
void expect_embedding(uint64_t seed) {
  Random random(seed);
  const Samples samples{1 + random.below(4), 1 + random.below(12)};
  const int64_t vocabulary = 1 + random.below(20), rows = samples.samples * samples.tokens;
  const Shape shape{rows, 1 + random.below(90)}, table_shape{vocabulary, shape.n};
  std::vector<T> weight = random.normal<T>(vocabulary * shape.n);
  weight[0] = T(-0.0);
  const std::vector<T> grad = random.normal<T>(rows * shape.n), start = random.normal<T>(vocabulary * shape.n);
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < rows; ++t) {
    ids.push_back(random.below(vocabulary));
  }
  const int64_t cut = random.below(vocabulary + 1);

  std::vector<T> want_out, want_total = start;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < shape.n; ++i) {
      want_out.push_back(weight[static_cast<size_t>(ids[static_cast<size_t>(t)] * shape.n + i)] + T(0));
    }
  }
  for (int64_t s = 0; s < samples.samples; ++s) {
    std::map<int64_t, std::vector<int64_t>> tokens;
    for (int64_t t = s * samples.tokens; t < (s + 1) * samples.tokens; ++t) {
      tokens[ids[static_cast<size_t>(t)]].push_back(t);
    }
    for (const auto& [id, of_id] : tokens) {
      for (int64_t i = 0; i < shape.n; ++i) {
        oracle::Row<T> grads;
        for (int64_t t : of_id) {
          grads.push_back(grad[static_cast<size_t>(t * shape.n + i)]);
        }
        T& total = want_total[static_cast<size_t>(id * shape.n + i)];
        total = oracle::add_sample(total, grads, {});
      }
    }
  }
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    const Placed<T> table(random, table_shape, weight), grads(random, shape, grad);
    Placed<T> left(random, shape), right(random, shape), total(random, table_shape, start);
    const TablePart first{0, cut}, second{cut, vocabulary};
    embedding(shape, ids.data(), first, table.in(), left.out());
    embedding(shape, ids.data(), second, table.in().from(cut), right.out());
    std::vector<T> sum = left.values();
    const std::vector<T> other = right.values();
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += other[i];  // what a merge over the ranks does
    }
    ASSERT_EQ(first_difference(sum, want_out), -1) << name_of(isa) << ", seed " << seed;
    add_embedding_gradient(samples, shape.n, ids.data(), first, grads.in(), total.out());
    add_embedding_gradient(samples, shape.n, ids.data(), second, grads.in(), total.out().from(cut));
    ASSERT_EQ(first_difference(total.values(), want_total), -1) << name_of(isa) << ", seed " << seed;
  }
}

TEST(Embedding, PartsOfTheTableGiveTheOraclesWhole) {
  for (uint64_t seed = 0; seed < (is_full() ? 10000 : 500); ++seed) {
    expect_embedding<float>(seed);
    expect_embedding<double>(seed);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// --- clip norm

TEST(ClipNorm, RowsAndColumnLeavesMerge) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const Shape shape{1 + random.below(13), 1 + random.below(200)};
    const std::vector<float> x = random.normal<float>(shape.rows * shape.n);
    const Rows<const float> rows{x.data(), shape.n};
    oracle::Row<float> of_rows;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const oracle::Row<float> row(x.begin() + r * shape.n, x.begin() + (r + 1) * shape.n);
      of_rows.push_back(oracle::dot(row, row, (shape.n + 7) / 8));
    }
    const float whole = clip_squares(shape, rows);
    ASSERT_EQ(whole, oracle::tree(of_rows)) << "seed " << seed;

    // Columns cut in the middle: two nodes of each row.
    const int64_t cut = std::min(shape.n, 4 * clip_leaf(shape.n));
    std::vector<float> left(of_rows.size()), right(of_rows.size());
    clip_row_squares({shape.rows, cut}, shape.n, rows, left.data());
    clip_row_squares({shape.rows, shape.n - cut}, shape.n, {x.data() + cut, shape.n}, right.data());
    for (size_t r = 0; r < left.size(); ++r) {
      left[r] += right[r];
    }
    ASSERT_EQ(left, of_rows) << "seed " << seed;

    // Rows cut at the root of the tree.
    int64_t top = 1;
    while (2 * top < shape.rows) {
      top *= 2;
    }
    if (shape.rows > 1) {
      ASSERT_EQ(clip_squares({top, shape.n}, rows) + clip_squares({shape.rows - top, shape.n}, rows.from(top)), whole)
          << "seed " << seed;
    }
  }
}

TEST(ClipNorm, FactorIsThatOfTorch) {
  EXPECT_EQ(clip_factor(0.5f, 1.0), 1.0f);
  EXPECT_EQ(clip_factor(4.0f, 1.0), 1.0f / (4.0f + 1e-6f));
  EXPECT_TRUE(std::isnan(clip_factor(NAN, 1.0)));
  EXPECT_EQ(clip_factor(static_cast<float>(INFINITY), 1.0), 0.0f);
}

TEST(ClipNorm, TreeSplitsAtTheLargestPowerOfTwoBelow) {
  Random random(2);
  for (int64_t count = 0; count < 70; ++count) {
    const std::vector<float> values = random.normal<float>(count);
    EXPECT_TRUE(same_bits(tree_sum(count, values.data()), oracle::tree<float>(values))) << count;
  }
}

// The bits of today. They change only with the definition.
TEST(Updates, GoldenBits) {
  auto make = [n = uint64_t{0}](size_t count) mutable {
    std::vector<float> values(count);
    for (float& value : values) {
      value = static_cast<float>(static_cast<int64_t>(tessera::base::hash_mix(++n) >> 40)) * 0x1p-23f - 1;
    }
    return values;
  };
  const std::vector<float> grad = make(12 * 50), x = make(12 * 50), scale = make(12), start = make(12 * 50);
  const std::vector<int64_t> ids = {3, 1, 3, 3, 0, 1, 3, 3, 1, 1, 0, 5};
  for (Isa isa : supported_isas()) {
    const ScopedIsa scope(isa);
    std::vector<float> sum(start), table(start), p(start), m(x), v(600, 0.5f);
    add_layer_norm_weight<float>({3, 4}, 50, {grad.data(), 50}, {x.data(), 50}, scale.data(), scale.data(), sum.data());
    add_embedding_gradient<float>({3, 4}, 50, ids.data(), {0, 12}, {grad.data(), 50}, {table.data(), 50});
    adamw_step({.step = 3}, 600, p.data(), grad.data(), m.data(), v.data());
    sgd_step({.momentum = 0.9, .nesterov = true}, 600, p.data(), grad.data(), m.data());
    std::vector<float> all = {clip_squares<float>({12, 50}, {grad.data(), 50})};
    for (const auto* part : {&sum, &table, &p, &m, &v}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    EXPECT_EQ(hash_of(all), 15440045775869552729u) << name_of(isa);
  }
}

}  // namespace

}  // namespace tessera::kernels::updates_test
