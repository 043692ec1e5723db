#include "tessera/trace/spans.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tessera::trace::spans_test {
namespace {

TEST(Spans, AreTraceEventsThatNest) {
  Spans spans;
  spans.begin("step \"1\"", "phase");
  for (int i = 0; i < 3; ++i) {
    spans.begin("aten::mm", "compute");
    spans.begin("all_reduce tp", "communication", 64);
    EXPECT_EQ(spans.depth(), 3u);
    spans.end();
    spans.end();
  }
  spans.end();
  spans.begin("unfinished", "phase");
  const auto zero = spans.first_ns() - 5000000;
  const auto events = nlohmann::json::parse(trace_file({spans.json(0, zero), spans.json(1, zero)})).at("traceEvents");
  ASSERT_EQ(events.size(), 1u + 2 * (2 + 7));
  EXPECT_EQ(events[1].at("args").at("name"), "rank 0");
  const auto& step = events[3];
  EXPECT_EQ(step.at("name"), "step \"1\"");
  EXPECT_EQ(step.at("ph"), "X");
  EXPECT_EQ(step.at("ts"), 5000);
  const auto end_of = [](const nlohmann::json& event) {
    return event.at("ts").get<double>() + event.at("dur").get<double>();
  };
  for (int i = 0; i < 3; ++i) {
    const auto &mm = events[4 + 2 * i], &reduce = events[5 + 2 * i];
    EXPECT_GE(mm.at("ts"), step.at("ts"));
    EXPECT_LE(end_of(mm), end_of(step) + 1e-6);
    EXPECT_GE(reduce.at("ts"), mm.at("ts"));
    EXPECT_LE(end_of(reduce), end_of(mm) + 1e-6);
    EXPECT_EQ(reduce.at("args").at("bytes"), 64);
    EXPECT_EQ(reduce.at("cat"), "communication");
  }
  EXPECT_EQ(events.back().at("tid"), 1);
}

TEST(Spans, NoneAreNoEvents) {
  EXPECT_EQ(Spans().first_ns(), INT64_MAX);
  EXPECT_EQ(nlohmann::json::parse(trace_file({Spans().json(0, 0)})).at("traceEvents").size(), 3u);
}

}  // namespace
}  // namespace tessera::trace::spans_test
