// Times of small schedules by hand, costs as they are written, and what pictures show.
#include "tessera/schedule/replay.h"

#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/passes.h"
#include "tessera/schedule/picture.h"

namespace tessera::schedule::replay_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ScheduleReplay, TakesTheCostsItIsTold) {
  const auto schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 1});
  const auto replay = replay_schedule(schedule, {.forward = 2, .input = 3, .weight = 5, .send = 0.5});
  // F on 0, sent, F and B on 1, sent, B on 0.
  EXPECT_EQ(replay.makespan, 2 + 0.5 + 2 + 8 + 0.5 + 8);
  EXPECT_EQ(replay.busy, (std::vector<double>{10, 10}));
  EXPECT_EQ(replay.times[1][1].begin, 4.5);
  EXPECT_EQ(replay.idle_in_window(0), 21 - 10);
  EXPECT_EQ(replay.idle_in_window(1), 0);
  EXPECT_EQ(replay.idle(), 1 - 20.0 / 42);
  // Input and weight apart: rank 0 begins before rank 1 made its weight gradient.
  EXPECT_EQ(replay_schedule(split_backward(schedule), {.forward = 2, .input = 3, .weight = 5}).makespan, 2 + 2 + 3 + 8);
  // Where the V turns, nothing is sent.
  const auto turned = make_schedule("zbv", {.ranks = 1, .micro_batches = 2});
  EXPECT_EQ(replay_schedule(turned, {.send = 100}).makespan, 6);
}

TEST(ScheduleReplay, ReadsCosts) {
  EXPECT_EQ(parse_costs("F=2, B=3,W=0.5 ,send=1e-1"), (Costs{.forward = 2, .input = 3, .weight = 0.5, .send = 0.1}));
  EXPECT_EQ(parse_costs(""), Costs{});
  for (const char* text : {"F", "F=", "F=x", "F=-1", "F=nan", "F=inf", "G=1", "F=1,,B=1", "=1", "F=1=2"}) {
    EXPECT_THROW(parse_costs(text), ConfigError) << text;
  }
}

TEST(ScheduleReplay, OfRanksThatWaitForEachOtherThrows) {
  auto schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 2});
  std::swap(schedule.ranks[0][0], schedule.ranks[0][2]);
  EXPECT_THROW(replay_schedule(schedule), PlanError);
}

TEST(SchedulePicture, TextHasARowForEachRank) {
  const auto schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 3});
  EXPECT_EQ(to_text(schedule, replay_schedule(schedule)),
            "rank 0 |F0 F1       B0--- F2 B1---    B2---\n"
            "rank 1 |   F0 B0--- F1 B1--- F2 B2---\n");
  const auto v = make_schedule("zbv", {.ranks = 1, .micro_batches = 1});
  EXPECT_EQ(to_text(v, replay_schedule(v)), "rank 0 |F0 f0 i0 w0 I0 W0\n");
}

TEST(SchedulePicture, SvgAndTraceShowEveryPassOnce) {
  const auto schedule = add_communication(make_schedule("v-half", {.ranks = 4, .micro_batches = 6}));
  const auto replay = replay_schedule(schedule, {.send = 0.5});
  const auto svg = to_svg(schedule, replay);
  size_t boxes = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) {
    ++boxes;
  }
  EXPECT_EQ(boxes, 4u * 2 * 3 * 6);
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_TRUE(has(svg, "<title>7F0: ") && has(svg, "weight backward"));
  const auto trace = nlohmann::json::parse(to_chrome_trace(schedule, replay));
  std::set<std::string> names;
  double last = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      EXPECT_TRUE(names.insert(event.at("name").get<std::string>()).second);
      last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
    }
  }
  EXPECT_DOUBLE_EQ(last, 1000 * replay.makespan);
  size_t actions = 0;
  for (const auto& of_rank : schedule.ranks) {
    actions += of_rank.size();
  }
  EXPECT_EQ(names.size(), actions);
}

}  // namespace
}  // namespace tessera::schedule::replay_test
