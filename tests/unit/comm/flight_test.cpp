#include "tessera/comm/call/flight.h"

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/trace/parting.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm::flight_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A folder for what ranks leave.
class Flights : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What the ranks of a failing job left.
  std::vector<trace::LeftFlights> left_by(int64_t ranks, const std::function<void(int64_t)>& body,
                                          RunOptions options = {}) {
    const FlightFolder folder(folder_);
    EXPECT_ANY_THROW(run_ranks(ranks, body, options));
    return trace::read_flights({folder_.string()});
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tessera_flights_" + std::to_string(::getpid()));
};

void reduce(Communicator& group, const char* op) {
  const Caller caller(RankContext::require(), op);
  group.all_reduce(at::zeros({4}), ReduceOp::kSum)->wait();
}

TEST_F(Flights, ARankThatThrowsIsBehind) {
  const auto all = left_by(3, [](int64_t rank) {
    reduce(world(), "aten::mm");
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the others are in their next collective
      throw std::runtime_error("the disk is full");
    }
    reduce(world(), "aten::sum");
  });
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].reason, "the disk is full");
  const auto text = trace::parting_text(all);
  EXPECT_TRUE(has(text,
                  "behind in world {0, 1, 2} at collective 1:\n  ranks 0, 2: all_reduce(sum) of Float[4] for "
                  "aten::sum\n  rank 1: has not come\n"))
      << text;
  EXPECT_TRUE(
      has(text, "rank 0: in all_reduce(sum) of Float[4] for aten::sum over world {0, 1, 2}, collective 1, for "))
      << text;
  EXPECT_TRUE(has(text, "rank 1: in no collective for ")) << text;
}

TEST_F(Flights, AnotherProgramIsFoundInItsAxis) {
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  const auto text = trace::parting_text(left_by(4, [&](int64_t rank) {
    auto& context = RankContext::require();
    for (int i = 0; i < 1200; ++i) {
      reduce(context.axis(mesh, i % 2), "aten::mm");
    }
    if (rank == 3) {
      context.axis(mesh, 1).barrier();
    } else {
      reduce(context.axis(mesh, 1), "aten::add");
    }
    world().barrier();
  }));
  EXPECT_TRUE(has(text,
                  "4 of 4 ranks left their collectives\nparted in tp {2, 3} at collective 600:\n  rank 2: "
                  "all_reduce(sum) of Float[4] for aten::add\n  rank 3: barrier\n"))
      << text;
  EXPECT_FALSE(has(text, "parted in tp {0, 1}")) << text;
}

// Of three members' leaves; the last has none.
TEST_F(Flights, AMergeOfOtherSizesIsFound) {
  const sums::MergePlan plan({{{0, 1}}, {{1, 2}}, {}}, {0, 2});
  const auto text = trace::parting_text(left_by(3, [&](int64_t rank) {
    const Caller caller(RankContext::require(), "aten::mm");
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{6}, rank == 1 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{4}}) {
      Merge merge{.plan = plan, .sizes = sizes, .options = at::TensorOptions().dtype(at::kFloat)};
      if (rank < 2) {
        merge.sums = {at::ones(sizes)};
      }
      world().merge(merge);
    }
  }));
  EXPECT_TRUE(has(text,
                  "parted in world {0, 1, 2} at collective 1:\n  ranks 0, 2: merge of Float[4] for aten::mm\n  rank 1: "
                  "merge of Float[2, 2] for aten::mm\n"))
      << text;
}

TEST_F(Flights, ADeadlineAndMessages) {
  const auto all = left_by(2,
                           [](int64_t rank) {
                             if (rank == 0) {
                               world().send(at::zeros({3}), 1, 5)->wait();
                               std::this_thread::sleep_for(std::chrono::milliseconds(400));
                               return;
                             }
                             world().receive(at::zeros({3}), 0, 5)->wait();
                             world().receive(at::zeros({3}), 0, 6)->wait();
                           },
                           {.deadline = std::chrono::milliseconds(100)});
  ASSERT_EQ(all.back().rank, 1);
  EXPECT_TRUE(has(all.back().reason, "waited 100 ms in receive(from rank 0, tag 6)")) << all.back().reason;
  EXPECT_TRUE(has(trace::parting_text(all),
                  "rank 1: in receive(from rank 0, tag 6) of Float[3] over world {0, 1}, message 0, for 1"))
      << trace::parting_text(all);
}

TEST_F(Flights, LayoutsAreThoseOfTheScope) {
  const auto mesh = layout::Mesh::parse("tp=2");
  const auto from = layout::Spec::contiguous(mesh, layout::parse_placements(mesh, "{tp: S(0)}"), {8}, at::kFloat);
  const auto to = layout::Spec::contiguous(mesh, layout::parse_placements(mesh, "{tp: R}"), {8}, at::kFloat);
  const auto all = left_by(2, [&](int64_t) {
    {
      const FlightLayouts layouts(RankContext::require(), from, to);
      world().barrier();
    }
    world().barrier();
    throw std::runtime_error("enough");
  });
  EXPECT_EQ(all[0].records.at(0).from + " -> " + all[0].records.at(0).to, "{tp: S(0)} -> {tp: R}");
  EXPECT_EQ(all[0].records.at(1).from, "");
}

TEST_F(Flights, NothingIsLeftWithoutAFailureOrAFolder) {
  {
    const FlightFolder folder(folder_);
    run_ranks(2, [](int64_t) { world().barrier(); });
  }
  EXPECT_ANY_THROW(run_ranks(2, [](int64_t) { throw std::runtime_error("no"); }));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(Flights, AFolderThatCannotBeMadeHidesNoError) {
  const FlightFolder folder("/proc/no/such");
  EXPECT_THROW(run_ranks(2, [](int64_t) { throw std::out_of_range("index 7"); }), std::out_of_range);
}

}  // namespace
}  // namespace tessera::comm::flight_test
