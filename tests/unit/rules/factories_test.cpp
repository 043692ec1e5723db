// Where tensors made from the shape of another are.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::factories_test {

using tessera::rules::testing::Caller;

namespace {

const Caller kTp("tp=2");
const Caller kGrid("dp=2,tp=2");

c10::IValue ints(std::vector<int64_t> values) { return c10::List<int64_t>(values); }

TEST(Factories, LikeTheirOperandWithoutMovingIt) {
  for (const char* op : {"aten::empty_like", "aten::zeros_like", "aten::ones_like"}) {
    EXPECT_EQ(kTp.run(op, {{.sizes = {4, 6}, .layout = "{tp: S(1)}"}}), "{tp: S(1)} -> {tp: S(1)}");
    EXPECT_EQ(kTp.run(op, {{.sizes = {4, 6}, .layout = "{tp: P}"}}), "{tp: P} -> {tp: R}");
    EXPECT_EQ(kGrid.run(op, {{.sizes = {4, 6}, .layout = "{dp: S(0;2), tp: S(0)}"}}),
              "{dp: S(0;2), tp: S(0)} -> {dp: S(0;2), tp: S(0)}");
  }
  EXPECT_EQ(kTp.run("aten::full_like", {{.sizes = {4, 6}, .layout = "{tp: S(0)}"}}, {{"fill_value", 2.5}}),
            "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run("aten::lift", {{.sizes = {4, 6}, .layout = "{tp: P(max)}"}}), "{tp: P(max)} -> {tp: P(max)}");
}

TEST(Factories, NewTensorsOfTheSameSizesAreLaidOutAlike) {
  for (const char* op : {"aten::new_empty", "aten::new_zeros", "aten::new_ones"}) {
    EXPECT_EQ(kTp.run(op, {{.sizes = {4, 6}, .layout = "{tp: S(1)}"}}, {{"size", ints({4, 6})}}),
              "{tp: S(1)} -> {tp: S(1)}");
    EXPECT_EQ(kTp.run(op, {{.sizes = {4, 6}, .layout = "{tp: S(1)}"}}, {{"size", ints({6, 4})}}),
              "{tp: S(1)} -> {tp: R}");
    EXPECT_EQ(kTp.run(op, {{.sizes = {4, 6}, .layout = "{tp: P}"}}, {{"size", ints({4})}}), "{tp: P} -> {tp: R}");
  }
}

TEST(Factories, StridesAreThoseOfTheWhole) {
  const Call call = kTp.call("aten::new_empty_strided", {{.sizes = {4, 6}, .layout = "{tp: S(0)}"}},
                             {{"size", ints({4, 6})}, {"stride", ints({1, 4})}});
  const Propagation decided = propagate(call, RuleTable::instance().find(call.name)->map(call));
  EXPECT_EQ(decided.outputs[0]->strides, (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(decided.outputs[0].layout_str(), "{tp: S(0)}");
}

}  // namespace

}  // namespace tessera::rules::factories_test
