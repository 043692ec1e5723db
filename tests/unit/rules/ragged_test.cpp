// Rules and cuts at given places: who keeps them, who scales them, who takes the operand whole.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::ragged_test {
namespace {

using tessera::layout::parse_placements;
using tessera::rules::testing::Arg;
using tessera::rules::testing::Caller;
using tessera::rules::testing::Named;

const Caller kFsdp("fsdp=3");
const Caller kGrid("fsdp=3,tp=2");
const Arg kRagged{.sizes = {8, 4}, .layout = "{fsdp: S(0|3,0,5)}"};
using Sizes = std::vector<int64_t>;

std::string run(const char* op, const std::vector<Arg>& tensors, const Named& rest = {}) {
  return kFsdp.run(op, tensors, rest);
}

TEST(RaggedRules, ElementwiseKeepsTheCut) {
  EXPECT_EQ(run("aten::relu", {kRagged}), "{fsdp: S(0|3,0,5)} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::add.Tensor", {kRagged, kRagged}),
            "{fsdp: S(0|3,0,5)} x {fsdp: S(0|3,0,5)} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::mul.Tensor", {{.sizes = {8, 4}}, kRagged}),
            "{fsdp: S(0|3,0,5)} x {fsdp: S(0|3,0,5)} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::add.Tensor", {kRagged, {.sizes = {1, 4}}}),
            "{fsdp: S(0|3,0,5)} x {fsdp: R} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::add_.Tensor", {kRagged, {.sizes = {8, 4}, .layout = "{fsdp: P}"}}),
            "{fsdp: S(0|3,0,5)} x {fsdp: S(0|3,0,5)} -> {fsdp: S(0|3,0,5)}");
  // The same parts under another name do not move.
  EXPECT_EQ(run("aten::add.Tensor",
                {{.sizes = {8, 4}, .layout = "{fsdp: S(0|3,3,2)}"}, {.sizes = {8, 4}, .layout = "{fsdp: S(0)}"}}),
            "{fsdp: S(0|2*3,2)} x {fsdp: S(0)} -> {fsdp: S(0|2*3,2)}");
}

TEST(RaggedRules, ViewsScaleThePlaces) {
  EXPECT_EQ(run("aten::t", {kRagged}), "{fsdp: S(0|3,0,5)} -> {fsdp: S(1|3,0,5)}");
  EXPECT_EQ(run("aten::view", {kRagged}, {{"size", Sizes{32}}}), "{fsdp: S(0|3,0,5)} -> {fsdp: S(0|12,0,20)}");
  EXPECT_EQ(run("aten::view", {{.sizes = {32}, .layout = "{fsdp: S(0|12,0,20)}"}}, {{"size", Sizes{8, 4}}}),
            "{fsdp: S(0|12,0,20)} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::unsqueeze", {kRagged}, {{"dim", 0}}), "{fsdp: S(0|3,0,5)} -> {fsdp: S(1|3,0,5)}");
  // A cut inside of what becomes an index is none of the result.
  EXPECT_EQ(run("aten::view", {kRagged}, {{"size", Sizes{4, 2, 4}}}), "{fsdp: R} -> {fsdp: R}");
  EXPECT_EQ(run("aten::view", {{.sizes = {8, 4}, .layout = "{fsdp: S(0|2,0,6)}"}}, {{"size", Sizes{4, 2, 4}}}),
            "{fsdp: S(0|2,0,6)} -> {fsdp: S(0|1,0,3)}");
}

TEST(SpanningRules, KeepTheCutWhereTheDimsGoSideBySide) {
  const Arg spanning{.sizes = {4, 3, 2}, .layout = "{fsdp: S(0-1|3,0,9)}"};
  const std::string cut = "{fsdp: S(0-1|3,0,9)}";
  EXPECT_EQ(run("aten::relu", {spanning}), cut + " -> " + cut);
  EXPECT_EQ(run("aten::add_.Tensor", {spanning, {.sizes = {4, 3, 2}, .layout = "{fsdp: P}"}}),
            cut + " x " + cut + " -> " + cut);
  EXPECT_EQ(run("aten::mul.Tensor", {spanning, {.sizes = {2}}}), cut + " x {fsdp: R} -> " + cut);
  EXPECT_EQ(run("aten::sum.dim_IntList", {spanning}, {{"dim", Sizes{2}}}), cut + " -> " + cut);
  EXPECT_EQ(run("aten::sum.dim_IntList", {spanning}, {{"dim", Sizes{0, 1}}}), cut + " -> {fsdp: P}");
  EXPECT_EQ(run("aten::sum", {spanning}), cut + " -> {fsdp: P}");
  EXPECT_EQ(run("aten::unsqueeze", {spanning}, {{"dim", 3}}), cut + " -> " + cut);
}

TEST(SpanningRules, TakeTheTensorWholeWhereTheyDoNot) {
  const Arg spanning{.sizes = {4, 3, 2}, .layout = "{fsdp: S(0-1|3,0,9)}"};
  EXPECT_EQ(run("aten::mul.Tensor", {spanning, {.sizes = {3, 2}}}), "{fsdp: R} x {fsdp: R} -> {fsdp: R}");
  EXPECT_EQ(run("aten::sum.dim_IntList", {spanning}, {{"dim", Sizes{1}}}), "{fsdp: R} -> {fsdp: R}");
  EXPECT_EQ(run("aten::select.int", {spanning}, {{"dim", 0}, {"index", 1}}), "{fsdp: R} -> {fsdp: R}");
  EXPECT_EQ(run("aten::transpose.int", {spanning}, {{"dim0", 1}, {"dim1", 2}}), "{fsdp: R} -> {fsdp: R}");
  EXPECT_EQ(run("aten::view", {spanning}, {{"size", Sizes{12, 2}}}), "{fsdp: R} -> {fsdp: R}");
}

TEST(RaggedRules, SumsOverTheCutArePartial) {
  EXPECT_EQ(run("aten::sum", {kRagged}), "{fsdp: S(0|3,0,5)} -> {fsdp: P}");
  EXPECT_EQ(run("aten::sum.dim_IntList", {kRagged}, {{"dim", Sizes{0}}}), "{fsdp: S(0|3,0,5)} -> {fsdp: P}");
  EXPECT_EQ(run("aten::sum.dim_IntList", {kRagged}, {{"dim", Sizes{1}}}), "{fsdp: S(0|3,0,5)} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::mm", {{.sizes = {2, 8}, .layout = "{fsdp: R}"}, kRagged}),
            "{fsdp: S(1|3,0,5)} x {fsdp: S(0|3,0,5)} -> {fsdp: P}");
}

TEST(RaggedRules, AWishForTheCutIsFollowed) {
  const Wishes wishes{.outputs = {parse_placements(layout::Mesh::parse("fsdp=3"), "{fsdp: S(0|3,0,5)}")},
                      .operands = {}};
  EXPECT_EQ(kFsdp.run("aten::mm", {{.sizes = {8, 2}}, {.sizes = {2, 4}}}, {}, wishes),
            "{fsdp: S(0|3,0,5)} x {fsdp: R} -> {fsdp: S(0|3,0,5)}");
}

TEST(RaggedRules, TheFasterOfTwoCuts) {
  const Arg both{.sizes = {8, 4}, .layout = "{fsdp: S(0|3,0,1@1), tp: S(0@0)}"};
  EXPECT_EQ(kGrid.run("aten::relu", {both}), "{fsdp: S(0|3,0,1@1), tp: S(0@0)} -> {fsdp: S(0|3,0,1@1), tp: S(0@0)}");
  EXPECT_EQ(kGrid.run("aten::t", {both}), "{fsdp: S(0|3,0,1@1), tp: S(0@0)} -> {fsdp: S(1|3,0,1@1), tp: S(1@0)}");
  EXPECT_EQ(kGrid.run("aten::add.Tensor", {both, {.sizes = {8, 4}}}),
            "{fsdp: S(0|3,0,1@1), tp: S(0@0)} x {fsdp: S(0|3,0,1@1), tp: S(0@0)} -> {fsdp: S(0|3,0,1@1), tp: S(0@0)}");
  EXPECT_EQ(kGrid.run("aten::sum.dim_IntList", {both}, {{"dim", Sizes{0}}}),
            "{fsdp: S(0|3,0,1@1), tp: S(0@0)} -> {fsdp: P, tp: P}");
}

// Places of the run that tp leaves are none of the whole dim: where tp decides otherwise, fsdp takes the operand whole.
TEST(RaggedRules, PlacesThatDoNotFitTheRunAreNotTaken) {
  const Arg both{.sizes = {8, 4}, .layout = "{fsdp: S(0|3,0,1@1), tp: S(0@0)}"};
  const Arg large{.sizes = {64, 8, 4}, .layout = "{tp: S(0)}"};
  const std::string found = kGrid.run("aten::add.Tensor", {large, both});
  EXPECT_EQ(found, "{fsdp: R, tp: S(0)} x {fsdp: R, tp: R} -> {fsdp: R, tp: S(0)}");
}

// tp cuts the 6 rows of fsdp's second rank in 3 and 3, as S(0|3,0) would, which is of runs of 3 and no layout of these.
TEST(RaggedRules, WhatIsWrittenStaysBesidePlacesOfAnotherRun) {
  EXPECT_EQ(kGrid.run("aten::add_.Tensor", {{.sizes = {7, 4}, .layout = "{fsdp: S(0|1,6,0), tp: S(0)}"},
                                            {.sizes = {7, 4}, .layout = "{fsdp: S(0), tp: S(0|3,0)}"}}),
            "{fsdp: S(0|1,6,0), tp: S(0)} x {fsdp: S(0|1,6,0), tp: S(0)} -> {fsdp: S(0|1,6,0), tp: S(0)}");
}

TEST(RaggedRules, WhatNeedsADimWholeTakesItWhole) {
  EXPECT_EQ(run("aten::cumsum", {kRagged}, {{"dim", 1}}), "{fsdp: S(0|3,0,5)} -> {fsdp: S(0|3,0,5)}");
  EXPECT_EQ(run("aten::cumsum", {kRagged}, {{"dim", 0}}), "{fsdp: R} -> {fsdp: R}");
}

}  // namespace
}  // namespace tessera::rules::ragged_test
