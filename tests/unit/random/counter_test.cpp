// The counter generator: every shard is the slice of the whole, bit for bit.
#include <gtest/gtest.h>

#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/view_as_real.h>

#include "regions.h"
#include "tessera/base/hash.h"
#include "tessera/random/counter.h"

namespace tessera::random::counter_test {

using namespace tessera::random::test;

namespace {

at::Tensor filled(const Region& region, const Stream& stream, const Distribution& distribution,
                  at::ScalarType dtype = at::kFloat) {
  at::Tensor local = at::empty(local_sizes(region), dtype);
  fill(local, region, stream, distribution);
  return local;
}

const Stream kStream{7, make_site("layers.0.weight#0+1").hash, 3};

struct Case {
  Distribution distribution;
  at::ScalarType dtype;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const Distribution& d :
         {Distribution(Uniform{-1, 2}), Distribution(Normal{1, 3}), Distribution(Exponential{2})}) {
      cases.push_back({d, dtype});
    }
  }
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool}) {
    cases.push_back({Bernoulli{0.3}, dtype});
    cases.push_back({Integers{0, 2}, dtype});
  }
  cases.push_back({Integers{-5, int64_t{1} << 40}, at::kLong});
  return cases;
}

// Every held element has the value that the whole tensor has there.
TEST(Counter, ShardsAreSlices) {
  const std::vector<Case> cases = all_cases();
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 generator(seed);
    const Region whole = random_whole(generator);
    const Region shard = random_cut(generator, whole);
    const Case& c = cases[seed % cases.size()];
    const at::Tensor all = filled(whole, kStream, c.distribution, c.dtype);
    const at::Tensor local = filled(shard, kStream, c.distribution, c.dtype);
    const std::vector<Element> elements = elements_of(shard);
    ASSERT_EQ(local.numel(), static_cast<int64_t>(elements.size()));
    const auto width = static_cast<int64_t>(all.element_size());
    const auto* expected = static_cast<const char*>(all.data_ptr());
    const auto* got = static_cast<const char*>(local.data_ptr());
    for (size_t i = 0; i < elements.size(); ++i) {
      ASSERT_EQ(std::memcmp(got + static_cast<int64_t>(i) * width, expected + elements[i].global * width, width), 0)
          << "seed " << seed << " element " << i << " of " << c.dtype;
    }
  }
}

// Longer than one batch of blocks, begun and ended inside a block.
TEST(Counter, LongRuns) {
  for (const Case& c : all_cases()) {
    const at::Tensor all = filled(whole_region({2000}), kStream, c.distribution, c.dtype);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{1, 1999}, {257, 1030}, {3, 4}, {510, 770}}) {
      Region region = whole_region({2000});
      region.held[0] = {{begin, end}};
      EXPECT_TRUE(at::equal(filled(region, kStream, c.distribution, c.dtype), all.slice(0, begin, end))) << c.dtype;
    }
  }
}

// The packing is frozen: one value of each kind, from Philox by hand.
TEST(Counter, Packing) {
  const Stream stream{0x123456789abcdefULL, make_site("w").hash, 17};
  Region region = whole_region({3, 4, 5});
  region.batch_dim = 0;
  region.batch_offset = 8;
  const at::Tensor uniform = filled(region, stream, Uniform{});
  const at::Tensor wide = filled(region, stream, Uniform{}, at::kDouble);
  const uint64_t key = tessera::base::hash_combine(tessera::base::hash_mix(stream.seed), stream.site);
  const PhiloxKey words = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  for (uint32_t sample = 0; sample < 3; ++sample) {
    for (uint32_t element = 0; element < 20; ++element) {
      const auto block = philox({element / 4, 0, sample + 8, 17}, words);
      EXPECT_EQ(uniform[sample].view(-1)[element].item<float>(),
                static_cast<float>(block[element % 4] >> 8) * 0x1p-24f);
      const auto pair = philox({element / 2, 0, sample + 8, 17}, words);
      const uint64_t bits = pair[element % 2 * 2] | uint64_t{pair[element % 2 * 2 + 1]} << 32;
      EXPECT_EQ(wide[sample].view(-1)[element].item<double>(), static_cast<double>(bits >> 11) * 0x1p-53);
    }
  }
}

// The counter is of 64 bits: runs across block 2^32, in groups of blocks and one by one.
TEST(Counter, GoesOnBeyondBlockTwoToThe32) {
  const uint64_t hash = tessera::base::hash_combine(tessera::base::hash_mix(kStream.seed), kStream.site);
  const PhiloxKey key = {static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)};
  const auto block_of = [&](int64_t number) {
    return philox({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0, 3}, key);
  };
  Region region = whole_region({int64_t{1} << 36});
  for (const int64_t length : {8, 800}) {
    const int64_t begin = (int64_t{1} << 34) - length / 2 - 1;  // 4 values a block
    region.held[0] = {{begin, begin + length}};
    const at::Tensor single = filled(region, kStream, Uniform{});
    const int64_t begin_wide = (int64_t{1} << 33) - length / 2 - 1;  // 2 values a block
    region.held[0] = {{begin_wide, begin_wide + length}};
    const at::Tensor wide = filled(region, kStream, Uniform{}, at::kDouble);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t element = begin + i;
      ASSERT_EQ(single[i].item<float>(), static_cast<float>(block_of(element / 4)[element % 4] >> 8) * 0x1p-24f)
          << element;
      const int64_t other = begin_wide + i;
      const PhiloxWords words = block_of(other / 2);
      const uint64_t bits = words[other % 2 * 2] | uint64_t{words[other % 2 * 2 + 1]} << 32;
      ASSERT_EQ(wide[i].item<double>(), static_cast<double>(bits >> 11) * 0x1p-53) << other;
    }
  }
  EXPECT_NE(draw_integer(kStream, 0, int64_t{1} << 33, int64_t{1} << 60),
            draw_integer(kStream, 0, 0, int64_t{1} << 60));
}

TEST(Counter, MicroBatchIsASlice) {
  Region step = whole_region({7, 3, 6});
  step.batch_dim = 0;
  const at::Tensor all = filled(step, kStream, Bernoulli{0.9});
  Region micro = whole_region({2, 3, 6});
  micro.batch_dim = 0;
  micro.batch_offset = 5;
  EXPECT_TRUE(at::equal(filled(micro, kStream, Bernoulli{0.9}), all.slice(0, 5, 7)));
}

TEST(Counter, FlattenedBatchHasTheValuesOfTheUnflattened) {
  Region step = whole_region({4, 3, 6});
  step.batch_dim = 0;
  Region flat = whole_region({12, 6});
  flat.batch_dim = 0;
  flat.batch_inner = 3;
  EXPECT_TRUE(at::equal(filled(flat, kStream, Normal{}), filled(step, kStream, Normal{}).view({12, 6})));
}

TEST(Counter, EachPartOfTheStreamCounts) {
  Region region = whole_region({64});
  region.batch_dim = 0;
  region.batch_extent = 1;
  const at::Tensor first = filled(region, kStream, Uniform{});
  for (const Stream& other :
       {Stream{8, kStream.site, 3}, Stream{7, make_site("layers.0.weight#0+2").hash, 3}, Stream{7, kStream.site, 4}}) {
    EXPECT_FALSE(filled(region, other, Uniform{}).eq(first).any().item<bool>());
  }
  region.batch_offset = 1;
  EXPECT_FALSE(filled(region, kStream, Uniform{}).eq(first).any().item<bool>());
}

// Dropout masks and integers do not depend on the dtype.
TEST(Counter, DiscreteValuesAreEqualInEveryDtype) {
  const Region region = whole_region({3, 37});
  const at::Tensor mask = filled(region, kStream, Bernoulli{0.9}, at::kDouble);
  EXPECT_TRUE(at::equal(mask, filled(region, kStream, Uniform{}).lt(0.9).to(at::kDouble)));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kBool, at::kLong}) {
    EXPECT_TRUE(at::equal(filled(region, kStream, Bernoulli{0.9}, dtype).to(at::kDouble), mask)) << dtype;
    EXPECT_TRUE(at::equal(filled(region, kStream, Integers{0, 2}, dtype).to(at::kDouble),
                          filled(region, kStream, Integers{0, 2}, at::kDouble)));
  }
}

TEST(Counter, Permutation) {
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    at::Tensor order = at::empty({n}, at::kLong);
    fill_permutation(order, kStream);
    std::vector<int64_t> values(order.data_ptr<int64_t>(), order.data_ptr<int64_t>() + n);
    EXPECT_TRUE(n < 7 || !std::is_sorted(values.begin(), values.end()));
    std::sort(values.begin(), values.end());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(values[i], i);
    }
  }
}

TEST(Counter, DrawIntegerIsTheFilledOne) {
  Region region = whole_region({2, 9});
  region.batch_dim = 0;
  const int64_t range = int64_t{1} << 45;
  const at::Tensor all = filled(region, kStream, Integers{0, range}, at::kLong);
  for (int64_t i = 0; i < 18; ++i) {
    EXPECT_EQ(draw_integer(kStream, i / 9, i % 9, range), all.view(-1)[i].item<int64_t>());
  }
}

TEST(Counter, Refusals) {
  const Region region = whole_region({4});
  EXPECT_THROW(filled(region, kStream, Uniform{}, at::kLong), c10::Error);
  EXPECT_THROW(filled(region, kStream, Uniform{2, 1}), c10::Error);
  EXPECT_THROW(filled(region, kStream, Normal{0, -1}), c10::Error);
  EXPECT_THROW(filled(region, kStream, Bernoulli{1.5}), c10::Error);
  EXPECT_THROW(filled(region, kStream, Bernoulli{std::nan("")}), c10::Error);
  EXPECT_THROW(filled(region, kStream, Integers{3, 3}), c10::Error);
  EXPECT_THROW(filled(region, kStream, Integers{0, 300}, at::kByte), c10::Error);
  EXPECT_THROW(filled(region, {1, 2, uint64_t{1} << 32}, Uniform{}), c10::Error);
  at::Tensor transposed = at::empty({3, 2}).t();
  EXPECT_THROW(fill(transposed, whole_region({2, 3}), kStream, Uniform{}), c10::Error);
  at::Tensor wrong = at::empty({5});
  EXPECT_THROW(fill(wrong, region, kStream, Uniform{}), c10::Error);
  EXPECT_THROW(filled(region, kStream, Exponential{}, at::kComplexFloat), c10::Error);
}

// Its parts are drawn one after the other, those of normal numbers with half of the variance.
TEST(Counter, ComplexNumbersArePairs) {
  const Region region = whole_region({3, 5}), of_parts = whole_region({3, 5, 2});
  const auto parts = [&](const Distribution& distribution) {
    return at::view_as_real(filled(region, kStream, distribution, at::kComplexDouble));
  };
  EXPECT_TRUE(at::equal(parts(Uniform{1, 3}), filled(of_parts, kStream, Uniform{1, 3}, at::kDouble)));
  EXPECT_TRUE(at::equal(parts(Normal{1, 3}), filled(of_parts, kStream, Normal{1, 3 / std::sqrt(2.0)}, at::kDouble)));
}

}  // namespace

}  // namespace tessera::random::counter_test
