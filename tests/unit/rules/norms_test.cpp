// Where softmax and normalisation may be cut; their numbers are audited.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::norms_test {

using namespace tessera::rules::testing;
using Args = std::vector<c10::IValue>;

namespace {

const Caller kTp("tp=2");

at::Tensor values(c10::IntArrayRef sizes) { return at::ones(sizes, at::kDouble); }

c10::IValue mask(bool input, bool weight, bool bias) { return c10::List<bool>({input, weight, bias}); }

bool decomposes(const Call& call) { return RuleTable::instance().find(call.name)->decompose_when(call); }

TEST(Norms, SoftmaxKeepsRowsCutAndDecomposesOverACutRow) {
  const auto softmax = [](const char* layout) {
    return kTp.call("aten::_log_softmax", {{.sizes = {4, 6}, .layout = layout}},
                    {{"dim", int64_t{-1}}, {"half_to_float", false}});
  };
  EXPECT_EQ(kTp.run(softmax("{tp: S(0)}")), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(kTp.run(softmax("{tp: P}")), "{tp: R} -> {tp: R}");
  EXPECT_FALSE(decomposes(softmax("{tp: S(0)}")));
  EXPECT_FALSE(decomposes(softmax("{tp: P}")));
  EXPECT_TRUE(decomposes(softmax("{tp: S(1)}")));
  EXPECT_TRUE(decomposes(kTp.call("aten::_softmax_backward_data",
                                  {{.sizes = {4, 6}}, {.sizes = {4, 6}, .layout = "{tp: S(0)}"}},
                                  {{"dim", int64_t{0}}, {"input_dtype", c10::kDouble}})));
}

std::vector<tessera::layout::Spec> specs_of(const Args& args, const std::vector<const char*>& layouts) {
  std::vector<tessera::layout::Spec> specs;
  for (const auto& [tensor, arg] : tensors_of(args)) {
    specs.push_back(kTp.spec({.sizes = tensor.sizes().vec(), .layout = layouts.at(specs.size())}));
  }
  return specs;
}

// What the rule makes of tensors laid out as `layouts` say.
std::string run(const std::string& op, const Args& args, const std::vector<const char*>& layouts) {
  return kTp.run(make_call(op, args, specs_of(args, layouts)));
}

TEST(Norms, WeightGradientsAreSumsOverRows) {
  const Args args = {values({4, 6}), values({4, 6}), c10::List<int64_t>({6}), values({4, 1}), values({4, 1}),
                     values({6}),    values({6}),    mask(true, true, true)};
  EXPECT_EQ(run("aten::native_layer_norm_backward", args,
                {"{tp: S(0)}", "{tp: S(0)}", "{tp: R}", "{tp: R}", "{tp: R}", "{tp: R}"}),
            "{tp: S(0)} x {tp: S(0)} x {tp: S(0)} x {tp: S(0)} x {tp: R} x {tp: R} -> {tp: S(0)}, {tp: P}, {tp: P}");
  EXPECT_EQ(run("aten::native_layer_norm_backward", args,
                {"{tp: S(1)}", "{tp: S(1)}", "{tp: R}", "{tp: R}", "{tp: R}", "{tp: R}"}),
            "{tp: R} x {tp: R} x {tp: R} x {tp: R} x {tp: R} x {tp: R} -> {tp: R}, {tp: R}, {tp: R}");
}

TEST(Norms, TrainingOnACutBatchDecomposes) {
  const Args args = {values({4, 6, 2}), values({6}), values({6}), values({6}), values({6}), true, 0.1, 1e-5};
  for (const char* layout : {"{tp: S(0)}", "{tp: S(1)}", "{tp: S(2)}"}) {
    EXPECT_TRUE(decomposes(make_call("aten::native_batch_norm", args,
                                     specs_of(args, {layout, "{tp: R}", "{tp: R}", "{tp: R}", "{tp: R}"}))));
  }
  EXPECT_EQ(run("aten::native_batch_norm", args, {"{tp: P}", "{tp: R}", "{tp: R}", "{tp: R}", "{tp: R}"}),
            "{tp: R} x {tp: R} x {tp: R} x {tp: R} x {tp: R} -> {tp: R}, {tp: R}, {tp: R}");
  for (const char* layout : {"{tp: S(0)}", "{tp: P}"}) {  // running statistics that are written where they are
    EXPECT_TRUE(decomposes(
        make_call("aten::native_batch_norm", args, specs_of(args, {"{tp: R}", "{tp: R}", "{tp: R}", layout, layout}))));
  }
}

}  // namespace

}  // namespace tessera::rules::norms_test
