#include "tessera/trace/flight_recorder.h"

#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/trace/parting.h"

namespace tessera::trace::flight_recorder_test {
namespace {

const std::string kTp = "tp", kDp = "dp";
const std::vector<int64_t> kPair = {0, 1}, kOther = {0, 2};

LeftFlights left(const FlightRecorder& recorder, int64_t rank = 0, int64_t world = 2) {
  return parse_flights(recorder.json(rank, world, "it said \"no\"\n"), "test");
}

TEST(FlightRecorder, WritesWhatItWasTold) {
  static const char* const kLayouts[] = {"{tp: P}", "{tp: R}"};
  FlightRecorder recorder([](const void* layout) { return std::string(*static_cast<const char* const*>(layout)); });
  const std::vector<int64_t> sizes = {4, 8};
  const auto first = recorder.begin({.kind = "all_reduce",
                                     .detail = "sum",
                                     .group = kTp,
                                     .ranks = kPair,
                                     .op = "aten::mm",
                                     .dtype = at::kFloat,
                                     .sizes = sizes,
                                     .is_uniform = true,
                                     .tensors = 1,
                                     .bytes = 128,
                                     .from = &kLayouts[0],
                                     .to = &kLayouts[1]});
  recorder.end(first, false);
  recorder.begin({.kind = "send",
                  .group = kDp,
                  .ranks = kOther,
                  .dtype = at::kLong,
                  .tensors = 1,
                  .bytes = 8,
                  .peer = 2,
                  .tag = 7});
  recorder.end(recorder.begin({.kind = "barrier", .group = kDp, .ranks = kOther}), true);

  const auto flights = left(recorder, 3, 4);
  EXPECT_EQ(flights.rank, 3);
  EXPECT_EQ(flights.world, 4);
  EXPECT_EQ(flights.reason, "it said \"no\"\n");
  ASSERT_EQ(flights.groups.size(), 2u);
  EXPECT_EQ(flights.groups[0].name, "tp");
  EXPECT_EQ(flights.groups[1].ranks, kOther);
  EXPECT_EQ(flights.groups[1].collectives, 1);  // messages do not count
  ASSERT_EQ(flights.records.size(), 3u);
  const auto& reduce = flights.records[0];
  EXPECT_EQ(reduce.kind + reduce.detail + reduce.op + reduce.dtype + reduce.from + reduce.to + reduce.state,
            "all_reducesumaten::mmFloat{tp: P}{tp: R}done");
  EXPECT_EQ(reduce.sizes, sizes);
  EXPECT_TRUE(reduce.is_uniform);
  EXPECT_FALSE(flights.records[1].is_uniform);
  EXPECT_EQ(reduce.bytes, 128);
  EXPECT_LE(reduce.begin_us, reduce.end_us);
  EXPECT_GT(reduce.begin_us, 1.6e15);  // since 1970
  EXPECT_EQ(flights.records[1].state, "running");
  EXPECT_EQ(flights.records[1].peer, 2);
  EXPECT_EQ(flights.records[1].tag, 7);
  EXPECT_EQ(flights.records[2].state, "failed");
  EXPECT_FALSE(flights.records[2].is_message());
}

TEST(FlightRecorder, KeepsTheLastThousandAndCountsByGroup) {
  FlightRecorder recorder;
  const auto running = recorder.begin({.kind = "barrier", .group = kTp, .ranks = kPair});
  for (int i = 0; i < 2500; ++i) {
    const bool is_tp = i % 5 == 0;
    const std::string op = "op" + std::to_string(i);  // gone when it is printed
    recorder.end(
        recorder.begin({.kind = "barrier", .group = is_tp ? kTp : kDp, .ranks = is_tp ? kPair : kOther, .op = op}),
        false);
  }
  recorder.end(running, true);  // no longer there
  const auto flights = left(recorder);
  ASSERT_EQ(flights.records.size(), FlightRecorder::kKept);
  EXPECT_EQ(flights.groups[0].collectives, 501);
  EXPECT_EQ(flights.groups[1].collectives, 2000);
  EXPECT_EQ(flights.records[0].op, "op1500");
  EXPECT_EQ(flights.records[0].number, 301);
  EXPECT_EQ(flights.records[1].number, 1200);
  EXPECT_EQ(flights.records.back().op, "op2499");
  for (const auto& record : flights.records) {
    EXPECT_EQ(record.state, "done");
  }
  const auto oldest = recorder.begin({.kind = "barrier", .group = kTp, .ranks = kPair});
  for (size_t i = 1; i < FlightRecorder::kKept; ++i) {
    recorder.end(recorder.begin({.kind = "barrier", .group = kTp, .ranks = kPair}), false);
  }
  recorder.end(oldest, true);  // just there
  EXPECT_EQ(left(recorder).records[0].state, "failed");
}

TEST(FlightRecorder, MessagesCountByEndAndTag) {
  FlightRecorder recorder;
  const auto send = [&](const char* kind, int64_t peer, int64_t tag) {
    recorder.end(recorder.begin({.kind = kind, .group = kTp, .ranks = kPair, .peer = peer, .tag = tag}), false);
  };
  static const char kSend[] = "send", kReceive[] = "receive";
  send(kSend, 1, 0), send(kSend, 1, 0), send(kSend, 1, 5), send(kReceive, 1, 0), send(kSend, 1, 0);
  std::vector<int64_t> numbers;
  for (const auto& record : left(recorder).records) {
    numbers.push_back(record.number);
  }
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 1, 0, 0, 2}));
}

TEST(FlightRecorder, MayBeReadWhileItIsWritten) {
  FlightRecorder recorder;
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i) {
      recorder.end(recorder.begin({.kind = "barrier", .group = kTp, .ranks = kPair, .op = std::to_string(i % 50)}),
                   false);
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(left(recorder).records.size(), FlightRecorder::kKept);
  }
  writer.join();
  EXPECT_EQ(left(recorder).groups[0].collectives, 20000);
}

}  // namespace
}  // namespace tessera::trace::flight_recorder_test
