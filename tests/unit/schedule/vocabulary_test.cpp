// Embedding and head cut over the ranks: a micro-batch more is held for each barrier, and nobody waits longer.
#include "tessera/schedule/vocabulary.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/passes.h"
#include "tessera/schedule/picture.h"
#include "tessera/schedule/replay.h"
#include "tessera/schedule/verify.h"

namespace tessera::schedule::vocabulary_test {
namespace {

struct Case {
  const char* name;
  int64_t ranks, micro_batches;
  double peak;  // without barriers
};

constexpr Case kCases[] = {
    {"1f1b", 4, 8, 4},   {"1f1b", 8, 16, 8},   {"1f1b", 3, 40, 3},
    {"v-half", 4, 8, 3}, {"v-half", 8, 16, 5}, {"v-half", 5, 20, 3},
};

// What the ranks wait of a step of unit costs in which the vocabulary takes `costs` of each rank for each micro-batch.
double waits(const Schedule& schedule, const Costs& costs) {
  const auto replay = replay_schedule(schedule, costs);
  return replay.makespan - replay.busy[0];
}

TEST(ScheduleVocabulary, HoldsOneMoreForEachBarrierAndWaitsNoLonger) {
  for (const Case& of : kCases) {
    const auto plain = make_schedule(of.name, {.ranks = of.ranks, .micro_batches = of.micro_batches});
    for (const int64_t barriers : {1, 2}) {
      SCOPED_TRACE(testing::Message() << of.name << " " << of.ranks << " " << of.micro_batches << " " << barriers);
      const auto schedule =
          make_schedule(of.name, {.ranks = of.ranks, .micro_batches = of.micro_batches, .barriers = barriers});
      verify_schedule(schedule);
      verify_schedule(add_communication(schedule));
      const auto peaks = peaks_of(schedule);
      EXPECT_EQ(*std::max_element(peaks.begin(), peaks.end()), of.peak + static_cast<double>(barriers));
      constexpr double kParts[][2] = {{0, 0}, {0.125, 0.125}, {0.25, 0.5}, {0.5, 0.25}, {1, 1}};
      for (const auto& [head, head_backward] : kParts) {
        const auto longer = waits(schedule, {.head = head, .head_backward = head_backward});
        EXPECT_LE(longer, waits(plain, {})) << head;
        if (of.name == std::string("1f1b")) {  // for input halves on the way down, not for whole backwards
          EXPECT_EQ(longer, 2.0 * static_cast<double>(of.ranks - 1)) << head;
        }
      }
      // The embedding's, before the first forward and behind the last backward, are waited for by a few passes.
      EXPECT_LE(waits(schedule, {.head = 0.25, .head_backward = 0.25, .embed = 0.125}), waits(plain, {}) + 1);
    }
  }
}

// Control: where backwards do not begin later, a rank waits at every barrier.
TEST(ScheduleVocabulary, OfABackwardThatDoesNotBeginLaterWaits) {
  const auto plain = make_schedule("1f1b", {.ranks = 4, .micro_batches = 16});
  for (const int64_t barriers : {1, 2}) {
    const auto early = add_vocabulary(plain, barriers);
    verify_schedule(early, {.peak = 4});
    EXPECT_GT(waits(early, {.head = 0.25, .head_backward = 0.25}), 2 * waits(plain, {}));
  }
}

// Control: where backwards are whole, ranks are in the middle of one when others come.
TEST(ScheduleVocabulary, OfWholeBackwardsRanksWaitForEachOther) {
  const Sizes sizes{.ranks = 4, .micro_batches = 8};
  for (const int64_t barriers : {1, 2}) {
    auto schedule = make_schedule("1f1b", {.ranks = 4, .micro_batches = 8, .barriers = barriers});
    for (auto& actions : schedule.ranks) {
      actions.erase(std::remove_if(actions.begin(), actions.end(),
                                   [](const Action& action) { return is_of_vocabulary(action.kind); }),
                    actions.end());
    }
    schedule.barriers = 0;
    const auto whole = add_vocabulary(merge_backward(schedule), barriers);
    EXPECT_FALSE(whole.has(ActionKind::kWeight));
    EXPECT_GT(waits(whole, {.head = 0.25, .head_backward = 0.25}), 1.5 * waits(make_schedule("1f1b", sizes), {}));
  }
}

TEST(ScheduleVocabulary, EveryRankDoesItsParts) {
  const auto schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 1, .barriers = 2});
  EXPECT_EQ(to_csv(schedule),
            "0EMBED_F0,0F0,0HEAD_F0,0HEAD_B0,0I0,0EMBED_B0,0W0\n"
            "1EMBED_F0,1F0,1HEAD_F0,1HEAD_B0,1I0,1W0,1EMBED_B0\n");
  EXPECT_EQ(parse_csv(to_csv(schedule), 2), schedule);
  EXPECT_EQ(to_text(schedule, replay_schedule(schedule, {.head = 1, .head_backward = 1, .embed = 1})),
            "rank 0 |E0 F0    S0 T0    I0 D0 W0\n"
            "rank 1 |E0    F0 S0 T0 I0 W0 D0\n");
}

// What the embedding makes waits for its forward: for three micro-batches at most.
TEST(ScheduleVocabulary, TheEmbeddingIsAFewForwardsAhead) {
  for (const char* name : {"1f1b", "v-half"}) {
    const auto schedule = make_schedule(name, {.ranks = 4, .micro_batches = 16, .barriers = 1});
    int64_t ahead = 0, most = 0;
    for (const Action& action : schedule.ranks[0]) {
      ahead += action.kind == ActionKind::kEmbed ? 1 : 0;
      ahead -= action.kind == ActionKind::kForward && action.stage == 0 ? 1 : 0;
      most = std::max(most, ahead);
    }
    EXPECT_GE(most, 1);
    EXPECT_LE(most, 3);
    EXPECT_EQ(ahead, 0);
  }
}

// A rank waits in a pass of the head until all have come, which verify_schedule knows.
TEST(ScheduleVocabulary, RanksMeetInPassesOfTheHead) {
  for (const char* name : {"1f1b", "v-half"}) {
    for (int64_t ranks = 2; ranks <= 8; ++ranks) {
      for (const int64_t micro_batches : {1, 2, 3, 5, 8, 13, 24}) {
        for (const int64_t barriers : {1, 2}) {
          SCOPED_TRACE(testing::Message() << name << " " << ranks << " " << micro_batches << " " << barriers);
          EXPECT_NO_THROW(verify_schedule(
              make_schedule(name, {.ranks = ranks, .micro_batches = micro_batches, .barriers = barriers})));
        }
      }
    }
  }
}

// The control: two ranks that come to them in different orders wait for each other, though each has what it needs.
TEST(ScheduleVocabulary, RanksThatMeetInOtherOrdersWaitForEver) {
  const auto with_heads = [](const std::string& of_rank_0) {
    return parse_csv("0EMBED_F0,0EMBED_F1,0F0,0F1," + of_rank_0 +
                         ",0I0,0EMBED_B0,0W0,0I1,0EMBED_B1,0W1\n"
                         "1EMBED_F0,1EMBED_F1,1F0,1HEAD_F0,1F1,1HEAD_F1,1HEAD_B0,1HEAD_B1,1I0,1W0,1EMBED_B0,1I1,1W1,"
                         "1EMBED_B1\n",
                     1);
  };
  EXPECT_NO_THROW(verify_schedule(with_heads("0HEAD_F0,0HEAD_F1,0HEAD_B0,0HEAD_B1")));
  const auto crossed = with_heads("0HEAD_F1,0HEAD_F0,0HEAD_B0,0HEAD_B1");
  EXPECT_THROW(verify_schedule(crossed), PlanError);
  EXPECT_THROW(replay_schedule(crossed), PlanError);
  // With one barrier they do not meet in HEAD_B.
  EXPECT_NO_THROW(verify_schedule(with_heads("0HEAD_F0,0HEAD_F1,0HEAD_B1,0HEAD_B0")));
}

TEST(ScheduleVocabulary, WhatIsLeftOutOrEarlyIsRefused) {
  const auto refusal = [](Schedule schedule, auto change) {
    change(schedule.ranks[1]);
    try {
      verify_schedule(schedule);
      return std::string();
    } catch (const PlanError& error) {
      return base::message_of(error);
    }
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  using Actions = std::vector<Action>;
  const auto two = make_schedule("1f1b", {.ranks = 2, .micro_batches = 1, .barriers = 2});
  EXPECT_EQ(refusal(two, [](Actions&) {}), "");
  EXPECT_TRUE(has(refusal(two, [](Actions& actions) { actions.erase(actions.begin() + 2); }),
                  "1HEAD_F0 stands 0 times on rank 1; accepted: once"));
  EXPECT_TRUE(
      has(refusal(two, [](Actions& actions) { std::swap(actions[2], actions[3]); }),
          "rank 1, action 2 (1HEAD_B0): it needs the head of stage 1, micro-batch 0, which this rank makes later"));
  EXPECT_TRUE(has(refusal(two, [](Actions& actions) { std::swap(actions[3], actions[4]); }),
                  "rank 1, action 3 (1I0): it needs the head's gradient"));
  EXPECT_TRUE(has(refusal(two, [](Actions& actions) { std::swap(actions[1], actions[2]); }),
                  "rank 1, action 1 (1HEAD_F0): it needs the output of stage 1"));
  EXPECT_TRUE(has(refusal(two, [](Actions& actions) { actions[0].stage = 0; }), "part 0 is on rank 0"));
  // With one barrier the last stage's backward may come before the parts' gradients.
  auto one = two;
  one.barriers = 1;
  EXPECT_EQ(refusal(one, [](Actions& actions) { std::swap(actions[3], actions[4]); }), "");
  one.barriers = 0;
  EXPECT_TRUE(has(refusal(one, [](Actions&) {}), "embedding and head are not cut in this schedule"));
}

TEST(ScheduleVocabulary, IsAddedToPlainPassesAlone) {
  const auto plain = make_schedule("1f1b", {.ranks = 2, .micro_batches = 2});
  EXPECT_THROW(add_vocabulary(add_communication(plain), 1), PlanError);
  EXPECT_THROW(add_vocabulary(add_vocabulary(plain, 1), 1), PlanError);
  EXPECT_THROW(add_vocabulary(plain, 3), PlanError);
  EXPECT_THROW(add_vocabulary(make_schedule("dualpipe", {.ranks = 2, .micro_batches = 4}), 1), PlanError);
  auto stuck = plain;
  std::swap(stuck.ranks[0][0], stuck.ranks[0][2]);
  EXPECT_THROW(add_vocabulary(stuck, 1), PlanError);
}

}  // namespace
}  // namespace tessera::schedule::vocabulary_test
