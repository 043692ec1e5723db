#include "tessera/trace/parting.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/trace/flight_recorder.h"

namespace tessera::trace::parting_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const LeftGroup kWorld{"world", {0, 1, 2}, 0}, kTp{"tp", {0, 1}, 0};

// A rank that has begun these collectives of one group, at 1 s, 2 s, ...; it was in the last.
LeftFlights rank_of(int64_t rank, const std::vector<LeftRecord>& records, LeftGroup group = kWorld, int64_t first = 0) {
  LeftFlights flights{.rank = rank, .world = 3, .reason = "reason " + std::to_string(rank), .at_us = 20e6};
  group.collectives = first + static_cast<int64_t>(records.size());
  flights.groups = {group};
  for (size_t i = 0; i < records.size(); ++i) {
    auto record = records[i];
    record.number = first + static_cast<int64_t>(i);
    record.begin_us = 1e6 * static_cast<double>(record.number + 1);
    record.end_us = record.begin_us + 5e5;
    record.state = i + 1 == records.size() ? "failed" : "done";
    flights.records.push_back(record);
  }
  return flights;
}

LeftRecord reduce(const std::string& op, std::vector<int64_t> sizes = {4}) {
  return {.kind = "all_reduce",
          .detail = "sum",
          .op = op,
          .dtype = "Float",
          .sizes = std::move(sizes),
          .is_uniform = true,
          .tensors = 1};
}

LeftRecord gather(const std::string& op, std::vector<int64_t> sizes = {4}) {
  return {.kind = "all_gather", .op = op, .dtype = "Float", .sizes = std::move(sizes), .tensors = 1};
}

TEST(Parting, NothingDiffers) {
  const std::vector<LeftRecord> calls = {reduce("a"), gather("b")};
  auto other = calls;
  other[1].sizes = {7};  // members of a gather may give different sizes
  const auto text = parting_text({rank_of(0, calls), rank_of(1, other), rank_of(2, calls)});
  EXPECT_TRUE(has(text, "3 of 3 ranks left their collectives\nno group in which these ranks differ\n")) << text;
  EXPECT_TRUE(has(
      text,
      "rank 1: in all_gather of Float[7] for b over world {0, 1, 2}, collective 1, for 500 ms\n  ended by: reason 1\n"))
      << text;
}

TEST(Parting, AnotherCallIsFoundWhereItFirstDiffers) {
  const std::vector<LeftRecord> calls = {reduce("a"), reduce("b"), reduce("c")};
  for (const auto& odd : {gather("b"), reduce("x"), reduce("b", {5})}) {
    auto other = calls;
    other[1] = odd;
    const auto text = parting_text({rank_of(0, calls), rank_of(1, other), rank_of(2, calls)});
    EXPECT_TRUE(
        has(text,
            "parted in world {0, 1, 2} at collective 1:\n  ranks 0, 2: all_reduce(sum) of Float[4] for b\n  rank 1: "))
        << text;
    EXPECT_EQ(text.find("at collective 2"), std::string::npos);
  }
}

// Members hold different numbers of nodes, all of the same sizes.
TEST(Parting, AMergeOfOtherSizesIsFound) {
  const auto merge = [](int64_t nodes, std::vector<int64_t> sizes) {
    return LeftRecord{.kind = "merge",
                      .op = "aten::mm",
                      .dtype = "Float",
                      .sizes = std::move(sizes),
                      .is_uniform = true,
                      .tensors = nodes};
  };
  const auto two = rank_of(2, {reduce("a"), merge(0, {4})});
  const auto zero = rank_of(0, {reduce("a"), merge(2, {4})});
  EXPECT_TRUE(
      has(parting_text({zero, rank_of(1, {reduce("a"), merge(1, {4})}), two}), "no group in which these ranks differ"));
  const auto text = parting_text({zero, rank_of(1, {reduce("a"), merge(1, {2, 2})}), two});
  EXPECT_TRUE(has(text,
                  "parted in world {0, 1, 2} at collective 1:\n  ranks 0, 2: merge of 2 Float[4] for aten::mm\n  rank "
                  "1: merge of Float[2, 2] for aten::mm\n"))
      << text;
}

TEST(Parting, WhoIsBehindIsNamedWithWhatItDid) {
  auto idle = rank_of(2, {reduce("a")});
  idle.records[0].state = "done";
  const auto text =
      parting_text({rank_of(0, {reduce("a"), reduce("b")}), rank_of(1, {reduce("a"), reduce("b")}), idle});
  EXPECT_TRUE(has(text,
                  "behind in world {0, 1, 2} at collective 1:\n  ranks 0, 1: all_reduce(sum) of Float[4] for b\n  rank "
                  "2: has not come\n"))
      << text;
  EXPECT_TRUE(has(text,
                  "rank 2: in no collective for 18.5 s; the last was all_reduce(sum) of Float[4] for a over world {0, "
                  "1, 2}, collective 0\n"))
      << text;
}

// Who is behind in one group may wait for those who differ in another.
TEST(Parting, DifferentCallsComeBeforeWhoIsBehind) {
  auto zero = rank_of(0, {reduce("a"), reduce("b")}), one = rank_of(1, {reduce("a"), reduce("x")});
  zero.groups.push_back(kTp);
  zero.groups[1].collectives = 1;
  auto record = reduce("p");
  record.group = 1;
  record.begin_us = 0.5e6;
  record.state = "done";
  zero.records.insert(zero.records.begin(), record);
  const auto text = parting_text({zero, one});
  const auto behind = text.find("behind in tp {0, 1} at collective 0"),
             parted = text.find("parted in world {0, 1, 2} at collective 1");
  ASSERT_NE(behind, std::string::npos) << text;
  EXPECT_LT(parted, behind);
}

TEST(Parting, MissingRanksAreNamed) {
  const auto text = parting_text({rank_of(0, {reduce("a")}), rank_of(2, {})});
  EXPECT_TRUE(has(text, "2 of 3 ranks left their collectives; rank 1 did not: finished, killed, or on another disk\n"))
      << text;
  EXPECT_TRUE(has(text, "rank 2: has begun no collective\n")) << text;
}

TEST(Parting, OnlyWhatAllStillHoldIsCompared) {
  auto old = rank_of(0, {gather("lost"), reduce("a"), reduce("b")}, kWorld, 10);
  const auto text = parting_text({old, rank_of(1, {reduce("a"), reduce("b")}, kWorld, 11)});
  EXPECT_TRUE(has(text, "no group in which these ranks differ")) << text;
}

TEST(Parting, TheEarliestGroupComesFirst) {
  auto zero = rank_of(0, {reduce("a"), reduce("b")}), one = rank_of(1, {reduce("a"), reduce("x")});
  for (auto* flights : {&zero, &one}) {
    flights->groups.push_back(kTp);
    flights->groups[1].collectives = 1;
    auto record = reduce(flights == &zero ? "p" : "q");
    record.group = 1;
    record.begin_us = 0.5e6;
    record.state = "done";
    flights->records.insert(flights->records.begin(), record);
  }
  const auto text = parting_text({zero, one});
  const auto tp = text.find("parted in tp {0, 1} at collective 0"),
             world = text.find("parted in world {0, 1, 2} at collective 1");
  ASSERT_NE(world, std::string::npos) << text;
  EXPECT_LT(tp, world);
}

class PartingFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "trace"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string json(int64_t rank, int64_t world = 2) const { return FlightRecorder().json(rank, world, ""); }
  std::string error_of(const std::vector<std::string>& paths) const {
    try {
      read_flights(paths);
    } catch (const base::DataError& error) {
      return base::message_of(error);
    }
    return "";
  }
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tessera_parting_" + std::to_string(::getpid()));
};

TEST_F(PartingFiles, FoldersAndFilesAreRead) {
  write("trace/" + flight_file(1), json(1));
  write("trace/" + flight_file(0), json(0));
  write("trace/steps_1-2.json", "no");
  const auto all = read_flights({folder_.string()});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].rank, 0);
  EXPECT_EQ(read_flights({(folder_ / "trace").string()}).size(), 2u);
  EXPECT_EQ(read_flights({write("copy.json", json(0))}).size(), 1u);
}

TEST_F(PartingFiles, WhatCannotBeMeantIsSaid) {
  EXPECT_TRUE(has(error_of({folder_.string()}), "holds no flight_rank_*.json"));
  EXPECT_TRUE(has(error_of({(folder_ / "none").string()}), "cannot read"));
  EXPECT_TRUE(has(error_of({write("half.json", json(0).substr(0, 50))}), "is not what a flight recorder left"));
  EXPECT_TRUE(has(error_of({write("other.json", "{\"flight_recorder\": 2}")}), "accepted: 1"));
  EXPECT_TRUE(has(error_of({write("a.json", json(0)), write("b.json", json(0))}), "different runs"));
  EXPECT_TRUE(has(error_of({write("c.json", json(1, 3)), write("a.json", json(0))}), "different runs"));
}

}  // namespace
}  // namespace tessera::trace::parting_test
