// Where losses and their gradients are; their numbers are audited.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::losses_test {

using testing::Caller;

namespace {

constexpr int64_t kNone = 0;
constexpr int64_t kMean = 1;
constexpr int64_t kSum = 2;
const Caller kTp("tp=2");

TEST(Losses, ReducedPointwiseLossesAreSumsOfTerms) {
  const auto mse = [](const char* x, const char* y, int64_t reduction) {
    return kTp.run("aten::mse_loss", {{.sizes = {4, 6}, .layout = x}, {.sizes = {4, 6}, .layout = y}},
                   {{"reduction", reduction}});
  };
  EXPECT_EQ(mse("{tp: S(0)}", "{tp: R}", kMean), "{tp: S(0)} x {tp: S(0)} -> {tp: P}");
  EXPECT_EQ(mse("{tp: S(1)}", "{tp: S(1)}", kSum), "{tp: S(1)} x {tp: S(1)} -> {tp: P}");
  EXPECT_EQ(mse("{tp: R}", "{tp: S(1)}", kNone), "{tp: S(1)} x {tp: S(1)} -> {tp: S(1)}");
  EXPECT_EQ(mse("{tp: P}", "{tp: R}", kMean), "{tp: R} x {tp: R} -> {tp: R}");
  EXPECT_EQ(
      kTp.run("aten::mse_loss_backward", {{.sizes = {}}, {.sizes = {4, 6}, .layout = "{tp: S(0)}"}, {.sizes = {4, 6}}},
              {{"reduction", kMean}}),
      "{tp: R} x {tp: S(0)} x {tp: S(0)} -> {tp: S(0)}");
}

TEST(Losses, ClassesMayBeCut) {
  const auto nll = [](const char* x, const char* target, int64_t reduction) {
    return kTp.run("aten::nll_loss_forward",
                   {{.sizes = {4, 6}, .layout = x}, {.sizes = {4}, .layout = target, .dtype = c10::kLong}},
                   {{"reduction", reduction}, {"ignore_index", int64_t{-100}}, {"weight", {}}});
  };
  EXPECT_EQ(nll("{tp: S(1)}", "{tp: R}", kSum), "{tp: S(1)} x {tp: R} -> {tp: P}, {tp: P}");
  EXPECT_EQ(nll("{tp: S(1)}", "{tp: R}", kNone), "{tp: S(1)} x {tp: R} -> {tp: P}, {tp: P}");
  EXPECT_EQ(nll("{tp: S(0)}", "{tp: R}", kSum), "{tp: S(0)} x {tp: S(0)} -> {tp: P}, {tp: P}");
  EXPECT_EQ(nll("{tp: R}", "{tp: S(0)}", kNone), "{tp: S(0)} x {tp: S(0)} -> {tp: S(0)}, {tp: P}");
  EXPECT_EQ(nll("{tp: P}", "{tp: R}", kMean), "{tp: R} x {tp: R} -> {tp: R}, {tp: R}");
}

TEST(Losses, OnlyAMeanReadsTheTotalWeight) {
  const auto backward = [](int64_t reduction) {
    return kTp.run("aten::nll_loss_backward",
                   {{.sizes = {}},
                    {.sizes = {4, 6}, .layout = "{tp: S(1)}"},
                    {.sizes = {4}, .dtype = c10::kLong},
                    {.sizes = {}, .layout = "{tp: P}"}},
                   {{"reduction", reduction}, {"ignore_index", int64_t{-100}}, {"weight", {}}});
  };
  EXPECT_EQ(backward(kMean), "{tp: R} x {tp: S(1)} x {tp: R} x {tp: R} -> {tp: S(1)}");
  EXPECT_EQ(backward(kSum), "{tp: R} x {tp: S(1)} x {tp: R} x {tp: P} -> {tp: S(1)}");
}

}  // namespace

}  // namespace tessera::rules::losses_test
