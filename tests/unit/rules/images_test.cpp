// Where convolutions and what acts on planes may be cut; their numbers are audited.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::images_test {

using namespace tessera::rules::testing;
using Ints = std::vector<int64_t>;

namespace {

const Caller kTp("tp=2");

// A convolution with a kernel of 3 and padding, so that the places stay as many.
Named same_places(int64_t groups) {
  return {{"stride", Ints{1}},   {"padding", Ints{1}},        {"dilation", Ints{1}},
          {"transposed", false}, {"output_padding", Ints{0}}, {"groups", groups}};
}

std::string convolve(const char* input, const char* weight, int64_t groups = 1) {
  return kTp.run("aten::convolution",
                 {{.sizes = {4, 8, 10}, .layout = input}, {.sizes = {6 * groups, 8 / groups, 3}, .layout = weight}},
                 same_places(groups));
}

TEST(Images, ConvolutionsAreCutBySamplesAndChannels) {
  EXPECT_EQ(convolve("{tp: S(0)}", "{tp: R}"), "{tp: S(0)} x {tp: R} -> {tp: S(0)}");
  EXPECT_EQ(convolve("{tp: S(1)}", "{tp: S(1)}"), "{tp: S(1)} x {tp: S(1)} -> {tp: P}");
  EXPECT_EQ(convolve("{tp: R}", "{tp: S(0)}"), "{tp: R} x {tp: S(0)} -> {tp: S(1)}");
  EXPECT_EQ(convolve("{tp: S(2)}", "{tp: R}"), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(convolve("{tp: P}", "{tp: R}"), "{tp: P} x {tp: R} -> {tp: P}");
}

TEST(Images, GroupsOfChannelsAreCutAsOne) {
  EXPECT_EQ(convolve("{tp: S(1)}", "{tp: S(0)}", 4), "{tp: S(1)} x {tp: S(0)} -> {tp: S(1;6)}");
  EXPECT_EQ(convolve("{tp: R}", "{tp: S(1)}", 4), "{tp: R} x {tp: R} -> {tp: R}");
}

TEST(Images, GradientsOfWeightsAreSumsOverSamples) {
  Named rest = same_places(1);
  rest.emplace_back("bias_sizes", Ints{6});
  rest.emplace_back("output_mask", c10::List<bool>({true, true, true}));
  const auto run = [&](const char* grad, const char* input, const char* weight) {
    return kTp.run("aten::convolution_backward",
                   {{.sizes = {4, 6, 10}, .layout = grad},
                    {.sizes = {4, 8, 10}, .layout = input},
                    {.sizes = {6, 8, 3}, .layout = weight}},
                   rest);
  };
  EXPECT_EQ(run("{tp: S(0)}", "{tp: S(0)}", "{tp: R}"),
            "{tp: S(0)} x {tp: S(0)} x {tp: R} -> {tp: S(0)}, {tp: P}, {tp: P}");
  EXPECT_EQ(run("{tp: S(1)}", "{tp: R}", "{tp: S(0)}"),
            "{tp: S(1)} x {tp: R} x {tp: S(0)} -> {tp: P}, {tp: S(0)}, {tp: S(0)}");
}

TEST(Images, PlanesStayWhole) {
  const auto run = [&](const char* op, const char* layout, const Named& rest) {
    return kTp.run(op, {{.sizes = {4, 6, 8, 8}, .layout = layout}}, rest);
  };
  const Named pool = {{"kernel_size", Ints{2, 2}}};
  EXPECT_EQ(run("aten::max_pool2d_with_indices", "{tp: S(1)}", pool), "{tp: S(1)} -> {tp: S(1)}, {tp: S(1)}");
  EXPECT_EQ(run("aten::max_pool2d_with_indices", "{tp: S(3)}", pool), "{tp: R} -> {tp: R}, {tp: R}");
  EXPECT_EQ(run("aten::avg_pool2d", "{tp: P}", pool), "{tp: P} -> {tp: P}");
  EXPECT_EQ(run("aten::reflection_pad2d", "{tp: S(0)}", {{"padding", Ints{1, 1, 2, 2}}}), "{tp: S(0)} -> {tp: S(0)}");
  EXPECT_EQ(run("aten::upsample_nearest2d", "{tp: S(2)}", {{"output_size", Ints{16, 16}}}), "{tp: R} -> {tp: R}");
}

}  // namespace

}  // namespace tessera::rules::images_test
