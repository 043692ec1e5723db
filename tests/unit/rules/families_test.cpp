// Layouts in, layouts out, family by family.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::families_test {

using tessera::rules::testing::Arg;
using tessera::rules::testing::Caller;
using tessera::rules::testing::Named;

namespace {

using Ints = std::vector<int64_t>;

const Caller kTp("tp=2");
const Caller kThree("tp=3");

std::string view(const Ints& from, const Ints& to, const std::string& layout, const Caller& caller = kTp) {
  return caller.run("aten::view", {{.sizes = from, .layout = "{tp: " + layout + "}"}}, {{"size", to}});
}

TEST(Views, HeadsAreUnits) {
  EXPECT_EQ(view({2, 8, 512}, {2, 8, 8, 64}, "S(2;64)"), "{tp: S(2;64)} -> {tp: S(2)}");
  EXPECT_EQ(view({2, 8, 8, 64}, {2, 8, 512}, "S(2)"), "{tp: S(2)} -> {tp: S(2;64)}");
  EXPECT_EQ(view({2, 8, 512}, {2, 8, 8, 64}, "S(2;128)"), "{tp: S(2;128)} -> {tp: S(2;2)}");
}

TEST(Views, CutsThatFallOnHeadsByThemselvesDoNotMove) {
  EXPECT_EQ(view({2, 8, 512}, {2, 8, 8, 64}, "S(2)"), "{tp: S(2)} -> {tp: S(2)}");
  EXPECT_EQ(view({2, 8, 512}, {2, 8, 8, 64}, "S(2)", kThree), "{tp: S(2;64)} -> {tp: S(2)}");
  EXPECT_EQ(view({2, 8, 512}, {2, 8, 8, 64}, "S(2;64)", kThree), "{tp: S(2;64)} -> {tp: S(2)}");
}

TEST(Views, FlattenKeepsTheSlowestDimCut) {
  EXPECT_EQ(view({4, 6, 8}, {24, 8}, "S(0)"), "{tp: S(0)} -> {tp: S(0;6)}");
  EXPECT_EQ(view({4, 6, 8}, {24, 8}, "S(1)"), "{tp: R} -> {tp: R}");
  EXPECT_EQ(view({4, 6, 8}, {24, 8}, "S(2)"), "{tp: S(2)} -> {tp: S(1)}");
  EXPECT_EQ(view({24, 8}, {4, 6, 8}, "S(0;6)"), "{tp: S(0;6)} -> {tp: S(0)}");
  EXPECT_EQ(view({24, 8}, {4, 6, 8}, "S(0)"), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(view({4, 6}, {6, 4}, "S(0)"), "{tp: S(0)} -> {tp: S(0;3)}");
  EXPECT_EQ(view({3, 4}, {2, 6}, "S(0)"), "{tp: R} -> {tp: R}");
}

TEST(Views, PartialsPass) {
  EXPECT_EQ(view({4, 6}, {24}, "P"), "{tp: P} -> {tp: P}");
  EXPECT_EQ(view({4, 6}, {24}, "P(max)"), "{tp: P(max)} -> {tp: P(max)}");
}

TEST(Views, OthersRenameDims) {
  const Arg x{.sizes = {4, 1, 6}, .layout = "{tp: S(0)}"};
  EXPECT_EQ(kTp.run("aten::transpose.int", {x}, {{"dim0", 0}, {"dim1", -1}}), "{tp: S(0)} -> {tp: S(2)}");
  EXPECT_EQ(kTp.run("aten::permute", {x}, {{"dims", Ints{1, 0, 2}}}), "{tp: S(0)} -> {tp: S(1)}");
  EXPECT_EQ(kTp.run("aten::unsqueeze", {x}, {{"dim", 0}}), "{tp: S(0)} -> {tp: S(1)}");
  EXPECT_EQ(kTp.run("aten::squeeze", {x}), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run("aten::expand", {x}, {{"size", Ints{4, 5, 6}}}), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run("aten::slice.Tensor", {x}, {{"dim", 2}, {"start", 1}}), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run("aten::slice.Tensor", {x}, {{"dim", 0}, {"start", 1}}), "{tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::slice.Tensor", {x}, {{"dim", 0}, {"start", 0}, {"end", INT64_MAX}}),
            "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run("aten::select.int", {x}, {{"dim", 1}, {"index", 0}}), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run("aten::split.Tensor", {x}, {{"split_size", 4}, {"dim", 2}}),
            "{tp: S(0)} -> {tp: S(0)}, {tp: S(0)}");
}

TEST(Reductions, OverACutDimArePartial) {
  const auto reduce = [](const char* op, const Named& rest) {
    return kTp.run(op, {{.sizes = {4, 6}, .layout = "{tp: S(0)}"}}, rest);
  };
  EXPECT_EQ(reduce("aten::sum", {}), "{tp: S(0)} -> {tp: P}");
  EXPECT_EQ(reduce("aten::sum.dim_IntList", {{"dim", Ints{1}}}), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(reduce("aten::sum.dim_IntList", {{"dim", Ints{0}}, {"keepdim", true}}), "{tp: S(0)} -> {tp: P}");
  EXPECT_EQ(reduce("aten::mean.dim", {{"dim", Ints{0}}}), "{tp: S(0)} -> {tp: P}");
  EXPECT_EQ(reduce("aten::amax", {{"dim", Ints{0}}}), "{tp: S(0)} -> {tp: P(max)}");
  EXPECT_EQ(reduce("aten::argmax", {{"dim", 0}}), "{tp: R} -> {tp: R}");
  EXPECT_EQ(reduce("aten::cumsum", {{"dim", 0}}), "{tp: R} -> {tp: R}");
  EXPECT_EQ(kTp.run("aten::sum", {{.sizes = {4, 6}, .layout = "{tp: P(avg)}"}}), "{tp: P(avg)} -> {tp: P(avg)}");
}

TEST(Lookups, OfACutDimArePartial) {
  const Arg weight{.sizes = {10, 4}, .layout = "{tp: S(0)}", .is_parameter = true};
  const Arg ids{.sizes = {2, 3}, .dtype = c10::kLong};
  EXPECT_EQ(kTp.run("aten::embedding", {weight, ids}), "{tp: S(0)} x {tp: R} -> {tp: P}");
  EXPECT_EQ(kTp.run("aten::embedding", {{.sizes = {10, 4}, .layout = "{tp: S(1)}"}, ids}),
            "{tp: S(1)} x {tp: R} -> {tp: S(2)}");
  EXPECT_EQ(kTp.run("aten::gather", {{.sizes = {4, 6}, .layout = "{tp: S(1)}"}, {.sizes = {4, 1}, .dtype = c10::kLong}},
                    {{"dim", 1}}),
            "{tp: S(1)} x {tp: R} -> {tp: P}");
}

TEST(Lookups, GradientsAreCutAsTheParameter) {
  const Named rest = {{"num_weights", 10}, {"padding_idx", -1}, {"scale_grad_by_freq", false}};
  const Call call =
      kTp.call("aten::embedding_dense_backward", {{.sizes = {2, 3, 4}}, {.sizes = {2, 3}, .dtype = c10::kLong}}, rest);
  const auto mesh = call.spec(0)->mesh;
  const Wishes wishes{.outputs = {tessera::layout::parse_placements(mesh, "{tp: S(0)}")}, .operands = {}};
  EXPECT_EQ(kTp.run(call, wishes), "{tp: R} x {tp: R} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run(call), "{tp: R} x {tp: R} -> {tp: R}");
}

TEST(Products, AddendsStandWithTheResult) {
  const Arg bias{.sizes = {4}, .layout = "{tp: S(0)}"};
  const Arg weight{.sizes = {6, 4}, .layout = "{tp: S(1)}"};
  EXPECT_EQ(kTp.run("aten::addmm", {bias, {.sizes = {8, 6}}, weight}),
            "{tp: S(0)} x {tp: R} x {tp: S(1)} -> {tp: S(1)}");
  EXPECT_EQ(
      kTp.run("aten::addmm",
              {{.sizes = {4}}, {.sizes = {8, 6}, .layout = "{tp: S(1)}"}, {.sizes = {6, 4}, .layout = "{tp: S(0)}"}}),
      "{tp: R} x {tp: S(1)} x {tp: S(0)} -> {tp: P}");
}

// The schema of the operator that a higher floor defines.
const c10::FunctionSchema& contract_schema() {
  const auto tensor = c10::TensorType::get();
  static const c10::FunctionSchema schema(
      "tessera::contract", "",
      {c10::Argument("a", tensor), c10::Argument("b", tensor), c10::Argument("equation", c10::StringType::get()),
       c10::Argument("like", c10::OptionalType::create(tensor)),
       c10::Argument("addend", c10::OptionalType::create(tensor))},
      {c10::Argument("", tensor)});
  return schema;
}

// The third tensor is argument `third`.
std::string contract(const Caller& caller, const std::string& equation, const std::vector<Arg>& tensors,
                     int third = 3) {
  Call call;
  call.name = "tessera::contract";
  call.schema = &contract_schema();
  call.args = {c10::IValue(), c10::IValue(), equation, c10::IValue(), c10::IValue()};
  for (size_t i = 0; i < tensors.size(); ++i) {
    Operand operand;
    operand.spec = caller.spec(tensors[i]);
    operand.arg = i < 2 ? static_cast<int>(i) : third;
    operand.is_parameter = tensors[i].is_parameter;
    call.operands.push_back(operand);
  }
  const FactorMap map = RuleTable::instance().find(call.name)->map(call);
  Output output;
  for (const DimFactors& dim : map.outputs.at(0)) {
    output.sizes.push_back(map.factors[dim.front()].extent);
  }
  output.strides = caller.spec({.sizes = output.sizes})->strides;
  output.dtype = c10::kDouble;
  call.outputs = {output};
  return caller.run(call);
}

TEST(Contract, LayersOfTensorParallelism) {
  const Arg x{.sizes = {2, 8, 6}}, cut_x{.sizes = {2, 8, 6}, .layout = "{tp: S(2)}"};
  const Arg rows{.sizes = {4, 6}, .layout = "{tp: S(0)}", .is_parameter = true};
  const Arg columns{.sizes = {4, 6}, .layout = "{tp: S(1)}", .is_parameter = true};
  EXPECT_EQ(contract(kTp, "bsk,jk->bsj", {x, rows}), "{tp: R} x {tp: S(0)} -> {tp: S(2)}");
  EXPECT_EQ(contract(kTp, "bsk,jk->bsj", {cut_x, columns}), "{tp: S(2)} x {tp: S(1)} -> {tp: P}");
  EXPECT_EQ(contract(kTp, "bsk,jk->bsj", {{.sizes = {2, 8, 6}, .layout = "{tp: S(1)}"}, rows}),
            "{tp: R} x {tp: S(0)} -> {tp: S(2)}");
}

TEST(Contract, LikeIsAWishAndStays) {
  const Arg x{.sizes = {2, 8, 6}}, grad{.sizes = {2, 8, 4}, .layout = "{tp: S(1)}"};
  const Arg weight{.sizes = {4, 6}, .layout = "{tp: S(0)}"};
  EXPECT_EQ(contract(kTp, "bsk,bsj->jk", {x, {.sizes = {2, 8, 4}}, weight}),
            "{tp: R} x {tp: S(2)} x {tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(contract(kTp, "bsk,bsj->jk", {{.sizes = {2, 8, 6}, .layout = "{tp: S(1)}"}, grad, {.sizes = {4, 6}}}),
            "{tp: S(1)} x {tp: S(1)} x {tp: R} -> {tp: P}");
}

TEST(Contract, AnAddendLiesAsTheResultAndIsWholeBesideASplitSum) {
  constexpr int kAddend = 4;
  const Arg x{.sizes = {2, 8, 6}}, rows{.sizes = {4, 6}, .layout = "{tp: S(0)}", .is_parameter = true};
  const Arg bias{.sizes = {4}}, cut_bias{.sizes = {4}, .layout = "{tp: S(0)}", .is_parameter = true};
  EXPECT_EQ(contract(kTp, "bsk,jk->bsj", {x, rows, cut_bias}, kAddend),
            "{tp: R} x {tp: S(0)} x {tp: S(0)} -> {tp: S(2)}");
  EXPECT_EQ(contract(kTp, "bsk,jk->bsj",
                     {{.sizes = {2, 8, 6}, .layout = "{tp: S(2)}"}, {.sizes = {4, 6}, .layout = "{tp: S(1)}"}, bias},
                     kAddend),
            "{tp: S(2)} x {tp: S(1)} x {tp: R} -> {tp: P}");
  EXPECT_EQ(
      contract(kTp, "bsk,jk->bsj", {{.sizes = {2, 8, 6}, .layout = "{tp: S(1)}"}, {.sizes = {4, 6}}, bias}, kAddend),
      "{tp: S(1)} x {tp: R} x {tp: R} -> {tp: S(1)}");
}

TEST(Contract, RefusesOtherEquations) {
  EXPECT_ANY_THROW(contract(kTp, "bsk,jk->bsz", {{.sizes = {2, 8, 6}}, {.sizes = {4, 6}}}));
  EXPECT_ANY_THROW(contract(kTp, "bs,jk->bj", {{.sizes = {2, 8, 6}}, {.sizes = {4, 6}}}));
  EXPECT_ANY_THROW(contract(kTp, "bsk->bk", {{.sizes = {2, 8, 6}}, {.sizes = {4, 6}}}));
}

}  // namespace

}  // namespace tessera::rules::families_test
