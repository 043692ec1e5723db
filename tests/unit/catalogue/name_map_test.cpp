#include "tessera/catalogue/name_map.h"

#include <random>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::catalogue::name_map_test {
namespace {

// The change, element by element: result[index] = from[index before].
at::Tensor changed_by_force(const at::Tensor& from, const Change& change) {
  Sizes sizes = from.sizes().vec();
  const Sizes old_sizes = sizes;
  if (change.factors.empty()) {
    std::swap(sizes[change.dim], sizes[change.other]);
  }
  at::Tensor result = at::empty(sizes, from.options());
  for (int64_t i = 0; i < from.numel(); ++i) {
    Sizes index(old_sizes.size());
    for (size_t d = index.size(), rest = static_cast<size_t>(i); d-- > 0; rest /= old_sizes[d]) {
      index[d] = static_cast<int64_t>(rest) % old_sizes[d];
    }
    Sizes to = index;
    if (change.factors.empty()) {
      std::swap(to[change.dim], to[change.other]);
    } else {
      Sizes digits(change.factors.size());
      for (size_t f = digits.size(), rest = static_cast<size_t>(index[change.dim]); f-- > 0;
           rest /= change.factors[f]) {
        digits[f] = static_cast<int64_t>(rest) % change.factors[f];
      }
      to[change.dim] = 0;
      for (int64_t factor : change.order) {
        to[change.dim] = to[change.dim] * change.factors[factor] + digits[factor];
      }
    }
    int64_t offset = 0;
    for (size_t d = 0; d < to.size(); ++d) {
      offset = offset * sizes[d] + to[d];
    }
    result.view(-1)[offset] = from.reshape(-1)[i];
  }
  return result;
}

TEST(Change, MovesEveryElementAndIsUndoneByItsInverse) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  for (int i = 0; i < 60; ++i) {
    Sizes factors(random.number(1, 3));
    std::generate(factors.begin(), factors.end(), [&] { return random.number(1, 4); });
    Sizes sizes(random.number(1, 3));
    std::generate(sizes.begin(), sizes.end(), [&] { return random.number(1, 4); });
    const auto ndim = static_cast<int64_t>(sizes.size());
    const int64_t dim = random.number(0, ndim - 1);
    Change change = transposed(dim, random.number(0, ndim - 1));
    if (random.number(0, 2) > 0) {
      sizes[dim] = c10::multiply_integers(factors);
      change = reordered(dim, factors, random.permutation(static_cast<int64_t>(factors.size())));
    }
    const at::Tensor tensor = at::arange(c10::multiply_integers(sizes)).view(sizes);
    const at::Tensor result = changed(tensor, change, "t");
    EXPECT_TRUE(at::equal(result, changed_by_force(tensor, change)));
    EXPECT_EQ(result.sizes().vec(), changed(sizes, change, "t"));
    EXPECT_TRUE(at::equal(changed(result, inverse(change), "t"), tensor));
    if (!change.factors.empty()) {
      Change open = change;
      open.factors[random.number(0, static_cast<int64_t>(factors.size()) - 1)] = -1;
      EXPECT_TRUE(at::equal(changed(tensor, open, "t"), result));
      EXPECT_TRUE(at::equal(changed(result, inverse(open), "t"), tensor));
    }
  }
}

TEST(Change, RefusesOtherSizes) {
  EXPECT_THROW(changed(Sizes{4}, transposed(0, 1), "t"), DataError);
  EXPECT_THROW(changed(Sizes{7, 2}, reordered(0, {2, 3}, {1, 0}), "t"), DataError);
  EXPECT_THROW(changed(Sizes{7, 2}, reordered(0, {-1, 3}, {1, 0}), "t"), DataError);
  EXPECT_THROW(changed(at::zeros({7, 2}), reordered(0, {2, 3}, {1, 0}), "t"), DataError);
  EXPECT_EQ(changed(Sizes{9, 2}, reordered(0, {-1, 3}, {1, 0}), "t"), (Sizes{9, 2}));
  EXPECT_THROW(reordered(0, {2, 3}, {1, 1}), c10::Error);
  EXPECT_THROW(reordered(0, {2, 3}, {0, 1, 2}), c10::Error);
  EXPECT_THROW(reordered(0, {-1, -1}, {1, 0}), c10::Error);
  EXPECT_THROW(reordered(0, {0, 3}, {1, 0}), c10::Error);
}

NameMap map_of(std::vector<NameRule> rules) { return NameMap(std::move(rules)); }

NameMap fused() {
  return map_of({{"model.layers.{layer}.attn.{part}_proj.weight", "h.{layer}.{part}.w", {transposed(0, 1)}},
                 {"model.layers.{layer}.qkv.bias", "h.{layer}.qkv.b", {reordered(0, {2, 3, -1}, {1, 0, 2})}},
                 {"norm.weight", "ln_f"}});
}

TEST(NameMap, RenamesAndChangesForms) {
  const NameMap map = fused();
  EXPECT_EQ(map.at("model.layers.12.attn.o_proj.weight").name, "h.12.o.w");
  EXPECT_EQ(map.inverse().at("h.12.o.w").name, "model.layers.12.attn.o_proj.weight");
  EXPECT_EQ(map.sizes({{"model.layers.1.attn.q_proj.weight", {2, 5}}, {"norm.weight", {3}}}),
            (std::map<std::string, Sizes>{{"h.1.q.w", {5, 2}}, {"ln_f", {3}}}));
  EXPECT_FALSE(map.find("model.layers..qkv.bias"));
  EXPECT_FALSE(map.find("model.layers.1.2.qkv.bias"));
  EXPECT_FALSE(map.find("model.layers.1.qkv.bias2"));
  EXPECT_FALSE(map.find("amodel.layers.1.qkv.bias"));
  try {
    map.at("norm.weights");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("no rule is for norm.weights; did you mean \"norm.weight\"?"),
              std::string::npos);
  }
}

TEST(NameMap, ThereAndBackIsTheSame) {
  const NameMap map = fused();
  std::map<std::string, at::Tensor> tensors = {{"norm.weight", at::rand({5})},
                                               {"model.layers.0.qkv.bias", at::rand({24})},
                                               {"model.layers.1.attn.q_proj.weight", at::rand({3, 7})}};
  const auto there = map.tensors(tensors);
  EXPECT_FALSE(at::equal(there.at("h.0.qkv.b"), tensors.at("model.layers.0.qkv.bias")));
  const auto back = map.inverse().tensors(there);
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : back) {
    EXPECT_TRUE(at::equal(tensor, tensors.at(name))) << name;
  }
}

TEST(NameMap, RefusesTwoRulesForOneName) {
  EXPECT_THROW(map_of({{"a.{x}", "b.{x}"}, {"a.{y}", "c.{y}"}}), c10::Error);
  EXPECT_THROW(map_of({{"a.{x}", "c.{x}"}, {"b.{y}", "c.{y}"}}), c10::Error);
  // Patterns that differ, but give one name, or take one.
  const NameMap two_give = map_of({{"a.{x}", "c.{x}.w"}, {"b", "c.b.w"}});
  EXPECT_THROW(two_give.find("b"), c10::Error);
  EXPECT_EQ(two_give.at("a.0").name, "c.0.w");
  EXPECT_THROW(two_give.sizes({{"a.b", {1}}, {"b", {1}}}), c10::Error);
  const NameMap two_take = map_of({{"a.b", "x"}, {"a.{y}", "c.{y}"}});
  EXPECT_EQ(two_take.at("a.b").name, "x");
  EXPECT_THROW(two_take.inverse().find("c.b"), c10::Error);
}

TEST(NameMap, RefusesPatternsThatCannotBeUndone) {
  EXPECT_THROW(map_of({{"a.{x}", "b"}}), c10::Error);
  EXPECT_THROW(map_of({{"a.{x}", "b.{y}"}}), c10::Error);
  EXPECT_THROW(map_of({{"a.{x}.{x}", "b.{x}.{x}"}}), c10::Error);
  EXPECT_THROW(map_of({{"a.{x}{y}", "b.{x}{y}"}}), c10::Error);
  EXPECT_THROW(map_of({{"a.{x", "b.{x"}}), c10::Error);
  EXPECT_THROW(map_of({{"a.{}", "b.{}"}}), c10::Error);
}

}  // namespace
}  // namespace tessera::catalogue::name_map_test
