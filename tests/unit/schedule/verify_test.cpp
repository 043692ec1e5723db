// What verify refuses, in its words; and that it refuses what a checker by brute force does, no more and no less.
#include "tessera/schedule/verify.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/passes.h"
#include "tests/unit/schedule/brute_force.h"

namespace tessera::schedule::verify_test {
namespace {

// The message of what verify throws; empty if it does not.
std::string refusal(const Schedule& schedule, const VerifyOptions& options = {}) {
  try {
    verify_schedule(schedule, options);
    return "";
  } catch (const PlanError& error) {
    return base::message_of(error);
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string refusal_of(const std::string& csv, const VerifyOptions& options = {}) {
  return refusal(parse_csv(csv), options);
}

TEST(ScheduleVerify, SaysRankPositionAndAction) {
  const std::pair<const char*, const char*> cases[] = {
      {"0F0,0B0\n1F0,1B0\n", ""},
      {"0B0,0F0\n1F0,1B0\n",
       "[schedule] rank 0, action 0 (0B0): it needs the output of stage 0, micro-batch 0, which this rank makes later"},
      {"0F0,0B0\n1F0,1I0\n",
       "[schedule] rank 1 makes the weight gradient of stage 1, micro-batch 0 0 times; accepted: once, by 1B0 or 1W0"},
      {"0F0,0B0\n1F0,1B0,1I0\n",
       "[schedule] rank 1 makes the input gradient of stage 1, micro-batch 0 2 times; accepted: once, by 1B0 or 1I0"},
      {"0F0,0B0,0B0\n1F0,1B0\n",
       "[schedule] rank 0, action 2 (0B0): it stands in the schedule already; accepted: once"},
      {"0F0,0B0,1B0\n1F0\n", "[schedule] rank 0, action 2 (1B0): stage 1 is on rank 1"},
      {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", "[schedule] 0RECV_B0 stands 0 times on rank 0; accepted: once"},
      {"0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "[schedule] rank 0, action 2 (0B0): it needs the input gradient of stage 1, micro-batch 0, which this rank has "
       "not received yet"},
      {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "[schedule] rank 0, action 0 (0SEND_F0): it sends the output of stage 0, micro-batch 0, which is made later"},
      {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
       "1RECV_F1,1F1,1RECV_F0,1F0,1B0,1SEND_B0,1B1,1SEND_B1\n",
       "[schedule] rank 1, action 0 (1RECV_F1): rank 0 sent the output of stage 0, micro-batch 0 before it; accepted: "
       "receives from one rank in the order in which it sends"},
      {"0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "[schedule] no rank goes on with 2 buffers: rank 0 waits at action 0 (0RECV_B0), rank 1 waits at action 0 "
       "(1RECV_F0)"},
      {"0F0,0SEND_F0,0B0\n", "[schedule] rank 0, action 1 (0SEND_F0): no other rank has a stage there"},
      {"0F0,0F1,0B0,0RECOMPUTE0,0B1\n", "[schedule] rank 0, action 3 (0RECOMPUTE0): its backward came before it"},
      {"0UNSHARD,0F0,0B0\n", "[schedule] rank 0 ends with stage 0 gathered; accepted: 0RESHARD after its last pass"},
      {"0F0,0UNSHARD,0B0,0RESHARD\n", "[schedule] rank 0, action 0 (0F0): the stage is not gathered"},
      {"0UNSHARD,0F0,0UNSHARD,0B0,0RESHARD\n", "[schedule] rank 0, action 2 (0UNSHARD): the stage is gathered already"},
      {"0F0,0B0,0REDUCE_GRAD\n", ""},
      {"0F0,0I0,0REDUCE_GRAD,0W0\n", "[schedule] rank 0, action 2 (0REDUCE_GRAD): it needs the weight gradient"},
      {"0F0,0B0,1F0,1B0\n", "[schedule] rank 0, action 1 (0B0): it needs the input gradient of stage 1"},
  };
  for (const auto& [csv, says] : cases) {
    const auto message = refusal_of(csv);
    EXPECT_EQ(message.empty(), *says == '\0') << csv << message;
    EXPECT_TRUE(has(message, says)) << csv << message;
  }
}

TEST(ScheduleVerify, CountsBuffersAndWhatIsHeld) {
  // Two micro-batches cross in both directions before anybody takes one.
  const std::string crossing =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
  EXPECT_EQ(refusal_of(crossing, {.buffers = 1}), "");
  EXPECT_EQ(refusal_of(crossing, {.peak = 2}), "");
  EXPECT_TRUE(has(refusal_of(crossing, {.peak = 1.5}), "[schedule] rank 0 holds 2 micro-batches at once"));
  const std::string late =
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_EQ(refusal_of(late, {.buffers = 1}), "");
  // Rank 0 takes nothing before it sent four, rank 1 takes two and then sends two.
  const std::string full =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,"
      "0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2,0RECV_B3,0B3\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,"
      "1RECV_F2,1F2,1RECV_F3,1F3,1B2,1SEND_B2,1B3,1SEND_B3\n";
  const auto message = refusal_of(full, {.buffers = 1});
  EXPECT_TRUE(has(message,
                  "[schedule] no rank goes on with 1 buffers: rank 0 waits at action 7 (0SEND_F3), rank 1 "
                  "waits at action 7 (1SEND_B1)"))
      << message;
  EXPECT_EQ(refusal_of(full, {.buffers = 2}), "");
  EXPECT_TRUE(has(refusal_of(full, {.buffers = 0}), "accepted: at least 1"));
}

TEST(ScheduleVerify, RefusesSizesThatContradict) {
  Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 3});
  schedule.chains = 2;
  EXPECT_TRUE(has(refusal(schedule), "chains that divide stages and micro-batches"));
  schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 3});
  schedule.rank_of_stage[1] = 2;
  EXPECT_TRUE(has(refusal(schedule), "stage 1 on rank 2 of 2"));
  EXPECT_TRUE(has(refusal(Schedule{}), "0 ranks, 0 stages"));
}

// One random change, or none where it would change nothing.
void corrupt(Schedule& schedule, std::mt19937_64& random) {
  const auto below = [&random](size_t count) { return static_cast<size_t>(random() % count); };
  auto& actions = schedule.ranks[below(schedule.ranks.size())];
  if (actions.size() < 2) {
    return;
  }
  const auto i = below(actions.size()), j = below(actions.size());
  const auto at = [&](size_t index) { return actions.begin() + static_cast<std::ptrdiff_t>(index); };
  const Action action = actions[i];
  switch (below(9)) {
    case 0: std::swap(actions[i], actions[j]); break;
    case 1: std::swap(actions[i], actions[(i + 1) % actions.size()]); break;
    case 2: actions.erase(at(i)); break;
    case 3: actions.insert(at(j), action); break;
    case 4: actions[i].stage += static_cast<int64_t>(below(3)) - 1; break;
    case 5: actions[i].micro_batch += static_cast<int64_t>(below(3)) - 1; break;
    case 6: actions[i].kind = static_cast<ActionKind>(below(8)); break;
    case 7: {  // to another place of the rank, by a few
      actions.erase(at(i));
      const auto to = std::min(actions.size(), i + below(7) - std::min<size_t>(i, 3));
      actions.insert(at(to), action);
      break;
    }
    default: {  // two messages of one kind change places
      const auto same = std::find_if(at(i) + 1, actions.end(), [&](const Action& other) {
        return other.kind == action.kind && other.stage == action.stage;
      });
      if (same != actions.end()) {
        std::iter_swap(at(i), same);
      }
    }
  }
}

// 2,000 corrupted lists; some of them are still right, and the rest wrong in every way.
TEST(ScheduleVerify, JudgesCorruptedListsAsBruteForceDoes) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  int64_t right = 0, wrong = 0;
  const char* names[] = {"gpipe", "1f1b",   "interleaved", "zb-h1",  "zb-h2",
                         "zbv",   "v-half", "v-min",       "1f1b-v", "dualpipe-v"};
  for (int64_t i = 0; i < 2000; ++i) {
    const auto ranks = static_cast<int64_t>(1 + random() % 4);
    const std::string name = names[random() % std::size(names)];
    const auto most = name == "dualpipe-v" ? 2 * ranks : static_cast<int64_t>(1 + random() % 5);
    auto schedule = make_schedule(name, {.ranks = ranks, .micro_batches = most});
    if (random() % 4 != 0) {
      schedule = add_communication(schedule);
    }
    const auto buffers = static_cast<int64_t>(1 + random() % 3);
    for (auto changes = 1 + random() % 2; changes > 0; --changes) {
      corrupt(schedule, random);
    }
    const bool can_run = can_run_by_force(schedule, buffers);
    const auto message = refusal(schedule, {.buffers = buffers});
    ASSERT_EQ(message.empty(), can_run) << "seed " << seed << ", list " << i << ", " << name << ", " << buffers
                                        << " buffers: " << message << "\n"
                                        << schedule;
    ++(can_run ? right : wrong);
  }
  EXPECT_GT(right, 200);
  EXPECT_GT(wrong, 1000);
  RecordProperty("right", std::to_string(right));
}

}  // namespace
}  // namespace tessera::schedule::verify_test
