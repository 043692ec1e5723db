// Parts of the stock stream against libtorch itself: draw the whole tensor, cut the part out.
#include <random>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "tessera/random/mt19937.h"
#include "tessera/random/stock_cpu.h"

namespace tessera::random::stock_cpu_test {
namespace {

struct Named {
  const char* name;
  StockDraw draw;
  bool takes_integers = false;
};

const std::vector<Named>& draws() {
  using T = at::Tensor&;
  using G = const at::Generator&;
  static const std::vector<Named> all = {
      {"uniform_", {[](T x, G g) { x.uniform_(-1, 2, g); }}},
      {"normal_", {[](T x, G g) { x.normal_(1, 3, g); }, true}},
      {"log_normal_", {[](T x, G g) { x.log_normal_(0, 1, g); }}},
      {"exponential_", {[](T x, G g) { x.exponential_(2, g); }}},
      {"cauchy_", {[](T x, G g) { x.cauchy_(0, 1, g); }}},
      {"bernoulli_", {[](T x, G g) { x.bernoulli_(0.3, g); }}, true},
      {"geometric_", {[](T x, G g) { x.geometric_(0.3, g); }}, true},
      {"random_", {[](T x, G g) { x.random_(g); }}, true},
      {"random_(10)", {[](T x, G g) { x.random_(10, g); }}, true},
      {"random_(2^27, 2^28 + 2^27 - 1)",
       {[](T x, G g) {
         if (x.scalar_type() == at::kLong) {
           x.random_(1 << 27, (3 << 27) - 1, g);
         } else {
           x.random_(3, 9, g);
         }
       }},
       true},
      {"random_(-7, 2^40)",
       {[](T x, G g) {
         if (x.scalar_type() == at::kLong) {
           x.random_(-7, int64_t{1} << 40, g);
         } else {
           x.random_(3, 9, g);
         }
       }},
       true},
      {"random_(lowest, none)",
       {[](T x, G g) {
         if (x.scalar_type() == at::kLong) {
           x.random_(std::numeric_limits<int64_t>::min(), std::nullopt, g);
         } else {
           x.random_(3, 9, g);
         }
       }},
       true},
      // What bernoulli and exponential do with MKL: one draw that seeds another generator.
      {"seeded",
       {[](T x, G g) {
         at::Tensor seed = at::empty({1}, at::kInt).random_(g);
         x.random_(0, 100, at::detail::createCPUGenerator(static_cast<uint64_t>(seed.item<int>())));
       }},
       true},
  };
  return all;
}

bool same_state(const at::Generator& a, const at::Generator& b) { return at::equal(a.get_state(), b.get_state()); }

// Moves a generator to some place of its stream; an odd one leaves a normal waiting.
at::Generator begun(int words, bool waiting) {
  at::Generator generator = at::detail::createCPUGenerator(77);
  at::empty({words}, at::kFloat).uniform_(0, 1, generator);
  if (waiting) {
    at::empty({1}, at::kFloat).normal_(0, 1, generator);
  }
  return generator;
}

void expect_part(const Named& one, const at::Tensor& like, const std::vector<Range>& held, int words, bool waiting) {
  at::Generator whole_generator = begun(words, waiting), generator = whole_generator.clone();
  at::Tensor whole = at::empty_strided(like.sizes(), like.strides(), like.options());
  one.draw.fill(whole, whole_generator);
  at::Tensor expected = whole;
  for (size_t d = 0; d < held.size(); ++d) {
    expected = expected.slice(static_cast<int64_t>(d), held[d].begin, held[d].end);
  }
  at::Tensor part = at::empty(expected.sizes(), like.options());
  const StockTensor tensor{like.sizes().vec(), like.strides().vec(), like.scalar_type()};
  fill_stock(part, tensor, held, one.draw, generator);
  const auto says = [&] {
    std::ostringstream text;
    text << one.name << " " << like.scalar_type() << like.sizes() << like.strides() << " after " << words
         << (waiting ? " and a normal" : "") << " holds";
    for (const Range& range : held) {
      text << " " << range.begin << ":" << range.end;
    }
    return text.str();
  };
  EXPECT_TRUE(at::equal(part, expected)) << says();
  EXPECT_TRUE(same_state(generator, whole_generator)) << says();
  at::Generator skipped = begun(words, waiting);
  skip_stock(tensor, one.draw, skipped);
  EXPECT_TRUE(same_state(skipped, whole_generator)) << says();
}

std::vector<at::Tensor> shapes(c10::ScalarType dtype) {
  const auto empty = [&](c10::IntArrayRef sizes) { return at::empty(sizes, dtype); };
  return {empty({}),
          empty({0}),
          empty({3, 0}),
          empty({1}),
          empty({15}),
          empty({16}),
          empty({17}),
          empty({40}),
          empty({64}),
          empty({1000}),
          empty({5, 7}),
          empty({5, 7}).t(),
          empty({8, 4}).t(),
          empty({4, 1, 6}).transpose(0, 2),
          empty({3, 4, 5}).permute({1, 2, 0}),
          empty({6, 10}).slice(1, 2, 7),
          empty({12}).slice(0, 0, 12, 3),
          empty({40}).slice(0, 0, 40, 2),
          empty({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast),
          at::empty_strided({3, 1, 8}, {8, 1, 1}, dtype)};
}

constexpr c10::ScalarType kFloats[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
constexpr c10::ScalarType kIntegers[] = {at::kLong, at::kInt, at::kByte, at::kBool};

TEST(StockCpu, EveryDrawOfEveryShape) {
  std::mt19937 pick(5);
  for (const Named& one : draws()) {
    std::vector<c10::ScalarType> dtypes(std::begin(kFloats), std::end(kFloats));
    if (one.takes_integers) {
      dtypes.insert(dtypes.end(), std::begin(kIntegers), std::end(kIntegers));
    }
    for (const c10::ScalarType dtype : dtypes) {
      if (dtype == at::kBool && std::string(one.name) != "random_" && std::string(one.name) != "bernoulli_") {
        continue;
      }
      for (const at::Tensor& like : shapes(dtype)) {
        for (int trial = 0; trial < 6; ++trial) {
          std::vector<Range> held;
          for (const int64_t size : like.sizes()) {
            int64_t a = static_cast<int64_t>(pick() % static_cast<uint64_t>(size + 1)),
                    b = static_cast<int64_t>(pick() % static_cast<uint64_t>(size + 1));
            held.push_back(trial == 0 ? Range{0, size} : Range{std::min(a, b), std::max(a, b)});
          }
          expect_part(one, like, held, trial == 0 ? 0 : static_cast<int>(pick() % 1300), trial % 2 == 1);
        }
      }
    }
  }
}

// Longer than a piece, with gaps that are skipped and gaps that are not, around the ends of blocks.
TEST(StockCpu, LongTensors) {
  for (const Named& one : draws()) {
    for (const c10::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t size : {40000, 40001, 40015}) {
        const at::Tensor like = at::empty({size}, dtype);
        for (const Range& held : {Range{0, size}, Range{1, 17}, Range{16383, 33000}, Range{size - 17, size},
                                  Range{size - 16, size - 3}, Range{39000, size - 16}}) {
          expect_part(one, like, {held}, 623, true);
        }
      }
      const at::Tensor wide = at::empty({31, 1303}, dtype), narrow = at::empty({401, 97}, dtype);
      for (const Range& columns : {Range{0, 100}, Range{700, 1303}, Range{1302, 1303}}) {
        expect_part(one, wide, {{0, 31}, columns}, 5, false);
      }
      for (const Range& columns : {Range{0, 30}, Range{96, 97}}) {
        expect_part(one, narrow, {{3, 400}, columns}, 5, true);
      }
      expect_part(one, narrow.t(), {{5, 9}, {0, 401}}, 5, true);
    }
  }
}

TEST(StockCpu, ComplexNormals) {
  const Named& normal = draws()[1];
  for (const int64_t size : {1, 3, 8, 9, 16, 21, 100}) {
    expect_part(normal, at::empty({size}, at::kComplexFloat), {{0, size}}, 5, true);
    expect_part(normal, at::empty({3, size}, at::kComplexDouble), {{1, 3}, {size / 2, size}}, 5, false);
  }
}

TEST(StockCpu, SkipIsDrawing) {
  std::mt19937 pick(9);
  at::mt19937 drawn(3), skipped(3);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t words = pick() % (i % 3 == 0 ? 630 : 2000);
    for (uint64_t k = 0; k < words; ++k) {
      drawn();
    }
    skip(skipped, words);
    ASSERT_EQ(drawn.data().left_, skipped.data().left_) << i;
    ASSERT_EQ(drawn.data().next_, skipped.data().next_) << i;
    ASSERT_EQ(drawn.data().state_, skipped.data().state_) << i;
  }
}

TEST(StockCpu, AGeneratorIsAValue) {
  StockGenerator one(4);
  const at::Generator held = one.handle();
  const StockGenerator copy = one;
  const uint64_t mark = one.mark();
  at::empty({5}).uniform_(0, 1, one.handle());
  at::empty({1}).normal_(0, 1, one.handle());
  EXPECT_NE(one.mark(), mark);
  EXPECT_EQ(copy.mark(), mark);
  one = copy;
  EXPECT_TRUE(held == one.handle());
  EXPECT_TRUE(same_state(held, at::detail::createCPUGenerator(4)));
  EXPECT_FALSE(StockGenerator());
}

}  // namespace
}  // namespace tessera::random::stock_cpu_test
