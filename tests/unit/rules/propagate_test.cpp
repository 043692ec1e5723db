// The choice of layouts: cost, wishes, parameters, in-place writes, units, orders, labels.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::propagate_test {

using tessera::layout::parse_placements;
using tessera::rules::testing::Arg;
using tessera::rules::testing::Caller;

namespace {

const Caller kTp("tp=2");
const Caller kGrid("dp=2,tp=2");

Wishes wish_output(const Caller& caller, const char* layout) {
  const auto mesh = caller.spec({.sizes = {1}})->mesh;
  return {.outputs = {parse_placements(mesh, layout)}, .operands = {}};
}

TEST(Propagate, MatrixProduct) {
  const auto mm = [](const char* x, const char* w) {
    return kTp.run("aten::mm", {{.sizes = {8, 6}, .layout = x}, {.sizes = {6, 4}, .layout = w}});
  };
  EXPECT_EQ(mm("{tp: R}", "{tp: R}"), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(mm("{tp: S(0)}", "{tp: R}"), "{tp: S(0)} x {tp: R} -> {tp: S(0)}");
  EXPECT_EQ(mm("{tp: R}", "{tp: S(1)}"), "{tp: R} x {tp: S(1)} -> {tp: S(1)}");
  EXPECT_EQ(mm("{tp: S(1)}", "{tp: S(0)}"), "{tp: S(1)} x {tp: S(0)} -> {tp: P}");
  EXPECT_EQ(mm("{tp: S(1)}", "{tp: R}"), "{tp: S(1)} x {tp: S(0)} -> {tp: P}");
  EXPECT_EQ(mm("{tp: P}", "{tp: S(1)}"), "{tp: R} x {tp: S(1)} -> {tp: S(1)}");
  EXPECT_EQ(mm("{tp: S(0;4)}", "{tp: R}"), "{tp: S(0;4)} x {tp: R} -> {tp: S(0;4)}");
}

TEST(Propagate, TheSmallerOperandMoves) {
  EXPECT_EQ(
      kTp.run("aten::mm", {{.sizes = {64, 6}, .layout = "{tp: S(0)}"}, {.sizes = {6, 4}, .layout = "{tp: S(1)}"}}),
      "{tp: S(0)} x {tp: R} -> {tp: S(0)}");
  EXPECT_EQ(
      kTp.run("aten::mm", {{.sizes = {2, 6}, .layout = "{tp: S(0)}"}, {.sizes = {6, 64}, .layout = "{tp: S(1)}"}}),
      "{tp: R} x {tp: S(1)} -> {tp: S(1)}");
}

TEST(Propagate, AParameterStays) {
  EXPECT_EQ(kTp.run("aten::mm", {{.sizes = {64, 6}, .layout = "{tp: S(0)}"},
                                 {.sizes = {6, 4}, .layout = "{tp: S(1)}", .is_parameter = true}}),
            "{tp: R} x {tp: S(1)} -> {tp: S(1)}");
}

TEST(Propagate, EachAxisForItself) {
  EXPECT_EQ(
      kGrid.run("aten::mm", {{.sizes = {8, 6}, .layout = "{dp: S(0)}"}, {.sizes = {6, 4}, .layout = "{tp: S(1)}"}}),
      "{dp: S(0), tp: R} x {dp: R, tp: S(1)} -> {dp: S(0), tp: S(1)}");
  EXPECT_EQ(kGrid.run("aten::mm",
                      {{.sizes = {8, 6}, .layout = "{dp: S(0), tp: S(1)}"}, {.sizes = {6, 4}, .layout = "{tp: S(0)}"}}),
            "{dp: S(0), tp: S(1)} x {dp: R, tp: S(0)} -> {dp: S(0), tp: P}");
}

TEST(Propagate, PartialsPassWhereTheOperatorIsLinear) {
  const Arg p{.sizes = {4, 4}, .layout = "{tp: P}"};
  const Arg r{.sizes = {4, 4}};
  const Arg s{.sizes = {4, 4}, .layout = "{tp: S(1)}"};
  const Arg largest{.sizes = {4, 4}, .layout = "{tp: P(max)}"};
  EXPECT_EQ(kTp.run("aten::add.Tensor", {p, p}), "{tp: P} x {tp: P} -> {tp: P}");
  EXPECT_EQ(kTp.run("aten::add.Tensor", {p, r}), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::add.Tensor", {p, s}), "{tp: S(1)} x {tp: S(1)} -> {tp: S(1)}");
  EXPECT_EQ(kTp.run("aten::add.Tensor", {largest, largest}), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::clone", {largest}), "{tp: P(max)} -> {tp: P(max)}");
  EXPECT_EQ(kTp.run("aten::neg", {p}), "{tp: P} -> {tp: P}");
  EXPECT_EQ(kTp.run("aten::neg", {largest}), "{tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::mul.Tensor", {p, {.sizes = {}}}), "{tp: P} x {tp: R} -> {tp: P}");
  EXPECT_EQ(kTp.run("aten::mul.Tensor", {p, r}), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::exp", {p}), "{tp: R} -> {tp: R}");
}

TEST(Propagate, Wishes) {
  const Arg x{.sizes = {8, 6}};
  const Arg w{.sizes = {6, 4}};
  EXPECT_EQ(kTp.run("aten::mm", {x, w}, {}, wish_output(kTp, "{tp: S(1)}")), "{tp: R} x {tp: S(1)} -> {tp: S(1)}");
  EXPECT_EQ(kTp.run("aten::mm", {{.sizes = {8, 6}, .layout = "{tp: S(1)}"}, w}, {}, wish_output(kTp, "{tp: R}")),
            "{tp: S(1)} x {tp: S(0)} -> {tp: P}");
  const auto mesh = kTp.spec(x)->mesh;
  const Wishes merge{.outputs = {}, .operands = {parse_placements(mesh, "{tp: S(1)}")}};
  EXPECT_EQ(kTp.run("aten::add.Tensor", {{.sizes = {4, 4}, .layout = "{tp: P}"}, {.sizes = {4, 4}}}, {}, merge),
            "{tp: S(1)} x {tp: S(1)} -> {tp: S(1)}");
  const Wishes whole{.outputs = {}, .operands = {parse_placements(mesh, "{tp: R}")}};
  EXPECT_EQ(kTp.run("aten::exp", {{.sizes = {4, 4}, .layout = "{tp: P}"}}, {}, whole), "{tp: R} -> {tp: R}");
}

TEST(Propagate, WrittenOperandsStay) {
  const auto add = [](const char* x, const char* y) {
    return kTp.run("aten::add_.Tensor", {{.sizes = {4, 4}, .layout = x}, {.sizes = {4, 4}, .layout = y}});
  };
  EXPECT_EQ(add("{tp: S(0)}", "{tp: S(1)}"), "{tp: S(0)} x {tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(add("{tp: R}", "{tp: S(1)}"), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(add("{tp: P}", "{tp: P}"), "{tp: P} x {tp: P} -> {tp: P}");
  EXPECT_EQ(add("{tp: P}", "{tp: S(1)}"), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::mm.out", {{.sizes = {8, 6}, .layout = "{tp: S(0)}"},
                                     {.sizes = {6, 4}},
                                     {.sizes = {8, 4}, .layout = "{tp: S(1)}"}}),
            "{tp: R} x {tp: S(1)} x {tp: S(1)} -> {tp: S(1)}");
}

TEST(Propagate, SaysWhatAnInPlaceWriteAccepts) {
  const Call call =
      kTp.call("aten::addmm_", {{.sizes = {4, 4}, .layout = "{tp: S(0)}"}, {.sizes = {4, 6}}, {.sizes = {6, 4}}});
  FactorMap map = RuleTable::instance().find("aten::addmm_")->map(call);
  map.factors[0].can_shard = false;
  try {
    propagate(call, map);
    FAIL();
  } catch (const c10::Error& error) {
    const std::string text = error.msg();
    EXPECT_NE(text.find("[addmm_] no layout for addmm_ {tp: S(0)} x {tp: R} x {tp: R}, axis tp; operand 0 is written"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("S(1) x R x S(1) -> S(1)"), std::string::npos) << text;
  }
}

TEST(Propagate, OrdersOfAxesThatShareADim) {
  const Arg x{.sizes = {8, 8}, .layout = "{dp: S(0@1), tp: S(0@0)}"};
  const Arg y{.sizes = {8, 8}, .layout = "{dp: S(0), tp: S(0)}"};
  const Arg r{.sizes = {8, 8}};
  EXPECT_EQ(kGrid.run("aten::add.Tensor", {x, r}),
            "{dp: S(0@1), tp: S(0@0)} x {dp: S(0@1), tp: S(0@0)} -> {dp: S(0@1), tp: S(0@0)}");
  EXPECT_EQ(kGrid.run("aten::add.Tensor", {x, y}),
            "{dp: S(0@1), tp: S(0@0)} x {dp: S(0@1), tp: S(0@0)} -> {dp: S(0@1), tp: S(0@0)}");
  EXPECT_EQ(kGrid.run("aten::add_.Tensor", {y, x}),
            "{dp: S(0), tp: S(0)} x {dp: S(0), tp: S(0)} -> {dp: S(0), tp: S(0)}");
  EXPECT_EQ(kGrid.run("aten::add.Tensor",
                      {{.sizes = {8, 8}, .layout = "{dp: S(0)}"}, {.sizes = {8, 8}, .layout = "{tp: S(0)}"}}),
            "{dp: S(0), tp: S(0)} x {dp: S(0), tp: S(0)} -> {dp: S(0), tp: S(0)}");
}

TEST(Propagate, EqualCutsInOtherUnitsDoNotMove) {
  const Arg x{.sizes = {8, 8}, .layout = "{tp: S(0;4)}"};
  const Arg y{.sizes = {8, 8}, .layout = "{tp: S(0)}"};
  EXPECT_EQ(kTp.run("aten::add.Tensor", {x, y}), "{tp: S(0;4)} x {tp: S(0)} -> {tp: S(0;4)}");
  const Arg uneven{.sizes = {6, 8}, .layout = "{tp: S(0;4)}"};
  EXPECT_EQ(kTp.run("aten::add.Tensor", {uneven, {.sizes = {6, 8}, .layout = "{tp: S(0)}"}}),
            "{tp: S(0;4)} x {tp: S(0;4)} -> {tp: S(0;4)}");
}

TEST(Propagate, SizeOneAxesAreIgnored) {
  const Caller caller("dp=1,tp=2");
  EXPECT_EQ(caller.run("aten::mm", {{.sizes = {8, 6}, .layout = "{dp: S(0), tp: S(0)}"}, {.sizes = {6, 4}}}),
            "{dp: R, tp: S(0)} x {dp: R, tp: R} -> {dp: R, tp: S(0)}");
}

TEST(Propagate, LabelsFollowFactors) {
  Call call = kTp.call("aten::mm", {{.sizes = {8, 6}}, {.sizes = {6, 4}}});
  const tessera::layout::Factor batch{tessera::layout::Label::kBatch, 8, 0, 8, 1};
  call.operands[0].spec = call.operands[0].spec.with_labels({{batch}, {}});
  const Propagation result = propagate(call, RuleTable::instance().find("aten::mm")->map(call));
  EXPECT_EQ(tessera::layout::str(result.outputs[0]->labels), "[b8, -]");
}

TEST(Propagate, BytesAreThoseOfTheRing) {
  const auto bytes = [](const std::vector<Arg>& args) {
    const Call call = kGrid.call("aten::exp", args);
    FactorMap map = RuleTable::instance().find("aten::exp")->map(call);
    map.block({0, 1});
    return propagate(call, map).bytes;
  };
  EXPECT_EQ(bytes({{.sizes = {8, 8}, .layout = "{dp: S(0)}"}}), 256);
  EXPECT_EQ(bytes({{.sizes = {8, 8}, .layout = "{dp: P}"}}), 512);
  EXPECT_EQ(bytes({{.sizes = {8, 8}, .layout = "{dp: S(0), tp: S(1)}"}}), 256);
}

}  // namespace

}  // namespace tessera::rules::propagate_test
