// The notation, and what passes add: there and back, beside torch's rules in words, and never another order.
#include "tessera/schedule/passes.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/replay.h"
#include "tessera/schedule/verify.h"

namespace tessera::schedule::passes_test {
namespace {

template <typename Call>
std::string thrown_by(Call call) {
  try {
    call();
    return "";
  } catch (const std::exception& error) {
    return base::message_of(error);
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ScheduleNotation, GoesThereAndBack) {
  for (int64_t kind = 0; kind < kActionKinds; ++kind) {
    const auto of_kind = static_cast<ActionKind>(kind);
    const Action action{of_kind, 12, has_micro_batch(of_kind) ? 34 : -1};
    EXPECT_EQ(try_parse_action(to_string(action)), action) << action;
  }
  EXPECT_EQ(to_string(Action{ActionKind::kForward, 2, 0}), "2F0");
  EXPECT_EQ(to_string(Action{ActionKind::kReceiveBackward, 1, 2}), "1RECV_B2");
  EXPECT_EQ(to_string(Action{ActionKind::kGather, 0}), "0UNSHARD");
  for (const char* text : {"", "F0", "2F", "2", "2X0", "-1F0", "2F-1", "2F0 ", "2 F0", "0UNSHARD1", "UNSHARD", "1f0",
                           "99999999999999999999F0"}) {
    EXPECT_EQ(try_parse_action(text), std::nullopt) << text;
  }
}

TEST(ScheduleNotation, RowsGoThereAndBack) {
  for (const Family& family : families()) {
    const auto schedule = make_schedule(family.name, {.ranks = 4, .micro_batches = 8});
    if (schedule.chains > 1) {
      continue;  // rows do not say that stages are held twice
    }
    EXPECT_EQ(parse_csv(to_csv(schedule)), schedule) << family.name;
    const auto lowered = add_reduces(add_gathers(add_communication(schedule), 1));
    EXPECT_EQ(parse_csv(to_csv(lowered)), lowered) << family.name;
  }
  const auto read = parse_csv("0F0,,(0F1;0B0)OVERLAP_F_B, 0B1 ,\r\n,,1F0,1F1,1B0,1B1\r\n");
  EXPECT_EQ(to_csv(read), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
}

TEST(ScheduleNotation, WhatIsNoListIsRefusedWithItsPlace) {
  EXPECT_TRUE(
      has(thrown_by([] { parse_csv("0F0,0B0\n1F0,1Z0\n"); }), "[schedule] row 1, cell 1: \"1Z0\" is no action"));
  EXPECT_TRUE(has(thrown_by([] { parse_csv("(0F0;0Q)OVERLAP_F_B"); }), "row 0, cell 0: \"0Q\" is no action"));
  EXPECT_TRUE(has(thrown_by([] { parse_csv("0F0,123456789F0"); }), "row 0: 123456789F0 in a schedule of 2 actions"));
  EXPECT_TRUE(has(thrown_by([] { parse_csv("0F0,0B0,2F0,2B0"); }), "no rank runs 1F, but stage 2 has actions"));
  EXPECT_TRUE(has(thrown_by([] { verify_schedule(parse_csv("")); }), "0 stages"));
}

TEST(ScheduleSizes, ThatDoNotFitAreRefusedWithThoseThatDo) {
  const auto refusal = [](const char* name, const Sizes& sizes) {
    return thrown_by([&] { make_schedule(name, sizes); });
  };
  EXPECT_TRUE(has(refusal("dualpipe-v", {.ranks = 4, .micro_batches = 7}),
                  "[schedule] dualpipe-v of 7 micro-batches on 4 ranks, which wants 2 micro-batches a rank or more; "
                  "accepted: 8 micro-batches on 4 ranks, 7 micro-batches on 3 ranks"));
  EXPECT_TRUE(has(refusal("dualpipe", {.ranks = 4, .micro_batches = 9}), "accepted: 8 or 10 micro-batches on 4 ranks"));
  EXPECT_TRUE(has(refusal("1f1b", {.ranks = 0, .micro_batches = 9}), "accepted: 9 micro-batches on 1 ranks"));
  EXPECT_TRUE(has(refusal("zbv", {.ranks = 4, .micro_batches = 8, .per_rank = 3}), "accepted: 2"));
  EXPECT_TRUE(has(refusal("interleaved", {.ranks = 4, .micro_batches = 8, .per_rank = -1}), "accepted: one or more"));
  EXPECT_TRUE(has(refusal("zbw", {.ranks = 4, .micro_batches = 8}), "did you mean \"zbv\"?"));
  EXPECT_TRUE(has(refusal("gpipe", {.ranks = 4, .micro_batches = 8, .barriers = 1}), "1 barriers; accepted: 0"));
}

TEST(SchedulePasses, MessagesGoFromStageToStage) {
  const auto lowered = add_communication(make_schedule("1f1b", {.ranks = 2, .micro_batches = 2}));
  EXPECT_EQ(to_csv(lowered),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  // Where the V turns, two stages lie on one rank.
  EXPECT_EQ(to_csv(add_communication(make_schedule("zbv", {.ranks = 1, .micro_batches = 1}))),
            "0F0,1F0,1I0,1W0,0I0,0W0\n");
  for (const Family& family : families()) {
    const auto schedule = make_schedule(family.name, {.ranks = 4, .micro_batches = 8});
    const auto all = add_communication(schedule);
    EXPECT_EQ(only_compute(all), schedule) << family.name;
    int64_t messages = 0;
    for (const auto& actions : all.ranks) {
      for (const Action& action : actions) {
        messages += is_send(action.kind) ? 1 : 0;
      }
    }
    // A V has 2p - 1 boundaries, one of them on a rank; a loop of two stages a rank has none there.
    const std::string name = family.name;
    const int64_t boundaries = family.per_rank == 1 || name == "dualpipe" ? 3 : name == "interleaved" ? 7 : 6;
    EXPECT_EQ(messages, boundaries * 8 * 2) << name;
    EXPECT_EQ(replay_schedule(all, {.send = 0.25}).makespan, replay_schedule(schedule, {.send = 0.25}).makespan)
        << name;
    EXPECT_TRUE(has(thrown_by([&] { add_communication(all); }), "has sends or receives already"));
  }
}

TEST(SchedulePasses, WaitsAreWrittenForOthersAndLeftOut) {
  const auto lowered = add_reduces(add_communication(make_schedule("1f1b", {.ranks = 2, .micro_batches = 2})));
  const std::string text = to_csv_with_waits(lowered);
  EXPECT_EQ(text,
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,0REDUCE_GRAD,"
            "0WAIT_REDUCE_GRAD\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1SEND_B1,1WAIT_SEND_B0,"
            "1WAIT_SEND_B1\n");
  EXPECT_EQ(parse_csv(text), lowered);
  for (const Family& family : families()) {
    const auto all = add_communication(make_schedule(family.name, {.ranks = 4, .micro_batches = 8}));
    EXPECT_EQ(parse_csv(to_csv_with_waits(all)).ranks, all.ranks) << family.name;
  }
  for (const char* wrong : {"0WAIT_F0", "0WAIT_SEND_F", "0WAIT_REDUCE_GRAD0", "WAIT_SEND_F0", "0WAIT_WAIT_SEND_F0"}) {
    EXPECT_TRUE(has(thrown_by([&] { parse_csv(c10::str("0F0,0B0,", wrong, "\n")); }), "is no action")) << wrong;
  }
}

TEST(SchedulePasses, GathersStandAroundStages) {
  const auto schedule = make_schedule("interleaved", {.ranks = 2, .micro_batches = 4});
  const auto kept = add_gathers(schedule);
  verify_schedule(add_reduces(kept));
  const auto count = [](const Schedule& counted, ActionKind kind) {
    int64_t times = 0;
    for (const auto& actions : counted.ranks) {
      times += std::count_if(actions.begin(), actions.end(), [&](const Action& action) { return action.kind == kind; });
    }
    return times;
  };
  EXPECT_EQ(count(kept, ActionKind::kGather), 4);  // each stage once a step
  const auto one = add_gathers(schedule, 1);
  verify_schedule(one);
  EXPECT_GT(count(one, ActionKind::kGather), 8);
  EXPECT_EQ(count(one, ActionKind::kGather), count(one, ActionKind::kFree));
  EXPECT_EQ(count(add_reduces(schedule), ActionKind::kReduce), 4);
  EXPECT_EQ(to_csv(add_reduces(add_gathers(make_schedule("1f1b", {.ranks = 1, .micro_batches = 2})))),
            "0UNSHARD,0F0,0B0,0F1,0B1,0REDUCE_GRAD,0RESHARD\n");
}

TEST(SchedulePasses, BackwardIsSplitAndMerged) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "1f1b-v"}) {
    const auto schedule = make_schedule(name, {.ranks = 3, .micro_batches = 6});
    const auto split = split_backward(schedule);
    verify_schedule(split);
    EXPECT_FALSE(split.has(ActionKind::kBackward));
    EXPECT_EQ(merge_backward(split), schedule);
    // The stage before may begin when the input half is there.
    EXPECT_LT(replay_schedule(split).makespan, replay_schedule(schedule).makespan);
    EXPECT_EQ(peaks_of(split), peaks_of(schedule));
  }
}

TEST(SchedulePasses, RecomputingHoldsOneMicroBatchAndCostsAForward) {
  const auto schedule = make_schedule("1f1b", {.ranks = 4, .micro_batches = 8});
  const auto recomputed = add_recompute(schedule);
  verify_schedule(add_communication(recomputed), {.peak = 1});
  // While a gradient is waited for: what the other ranks lengthen the step by stays as it was.
  EXPECT_EQ(replay_schedule(schedule).makespan, 8 * 3 + 3 * 3);
  EXPECT_EQ(replay_schedule(recomputed).makespan, 8 * 4 + 3 * 3);
  EXPECT_TRUE(has(thrown_by([&] { add_recompute(recomputed); }), "has RECOMPUTE already"));
}

}  // namespace
}  // namespace tessera::schedule::passes_test
