// What schedules of pipelines run, hold and send, against what their lists say.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallel/job.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/memory.h"
#include "tests/ranks/even_block.h"
#include "tests/ranks/recorded_passes.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/schedule_table.h"

namespace tessera::ranks::schedule_bytes_test {
namespace {

constexpr int64_t kWidth = 16, kStages = 4, kMicroBatches = 8;

// A step of each rank: the most that it held above what it holds between steps, in bytes, and what the ledger says.
struct Measured {
  std::vector<int64_t> peaks;
  trace::Ledger ledger;
};

Measured step_of(const std::string& schedule, int64_t blocks, int64_t rows,
                 const std::vector<std::string>& recompute = {}) {
  support::count_allocations();
  Measured measured{.peaks = std::vector<int64_t>(kStages), .ledger = {}};
  run_on(Mesh({{"pp", kStages}}), [&](int64_t rank) {
    auto model = parallel::deferred([&] { return EvenTower(blocks, kWidth); });
    const auto plan = parallel::generate_plan(
        *model, {.mesh = Mesh({{"pp", kStages}}), .schedule = schedule, .recompute = recompute});
    auto job = parallel::parallelize(model, plan, {.accumulate = kMicroBatches});
    const at::Tensor batch = at::ones({rows * kMicroBatches, kWidth});
    job(batch).backward();  // gradients are there from now on
    comm::RankContext::require().ledger.clear();
    const int64_t before = support::bytes_of(rank).live;
    support::reset_peak(rank);
    job(batch).backward();
    measured.peaks[static_cast<size_t>(rank)] = support::bytes_of(rank).peak - before;
    if (rank == 0) {
      measured.ledger = comm::RankContext::require().ledger;
    }
  });
  return measured;
}

// What a row more of each micro-batch adds: activations, and neither parameters nor gradients.
std::vector<double> bytes_of_rows(const std::string& schedule, int64_t blocks) {
  constexpr int64_t kFew = 32, kMany = 96;
  const auto few = step_of(schedule, blocks, kFew).peaks, many = step_of(schedule, blocks, kMany).peaks;
  std::vector<double> added;
  for (size_t rank = 0; rank < few.size(); ++rank) {
    added.push_back(static_cast<double>(many[rank] - few[rank]) / (kMany - kFew));
  }
  return added;
}

std::vector<double> said_of(const std::string& schedule) {
  return schedule::peaks_of(schedule::make_schedule(schedule, {.ranks = kStages, .micro_batches = kMicroBatches}));
}

// In units of what one micro-batch leaves on a stage.
TEST(ScheduleBytes, PeaksAreThoseOfTheLists) {
  constexpr int64_t kBlocks = 96;  // so many that what is not a block's counts little
  constexpr double kUnit = 1.0 * EvenBlockImpl::kKept * kWidth * sizeof(float) * kBlocks / kStages;
  const std::vector<std::string> few = {"gpipe", "1f1b", "zb-h1", "v-half", "v-min"},
                                 all = {"gpipe", "1f1b",   "interleaved", "zb-h1", "zb-h2",
                                        "zbv",   "1f1b-v", "v-half",      "v-min", "dualpipe-v"};
  for (const std::string& name : is_full() ? all : few) {
    const std::vector<double> own = bytes_of_rows(name, kBlocks), said = said_of(name);
    for (size_t rank = 0; rank < own.size(); ++rank) {
      EXPECT_NEAR(own[rank] / kUnit / said[rank], 1, 0.05) << name << ", rank " << rank;
    }
  }
}

// What the ranks ran of a step, each in its order.
schedule::Schedule ran(const std::string& name, const schedule::Schedule& list) {
  schedule::Schedule result = list;
  const Mesh mesh({{"pp", list.num_ranks()}});
  run_on(mesh, [&](int64_t rank) {
    auto model = parallel::deferred([&] { return EvenTower(list.num_stages(), kWidth); });
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .schedule = name});
    auto job = parallel::parallelize(model, plan, {.accumulate = list.micro_batches});
    const RecordedPasses recorded;
    job(at::ones({list.micro_batches, kWidth})).backward();
    result.ranks[static_cast<size_t>(rank)] = recorded.actions();
  });
  return result;
}

TEST(ScheduleBytes, WhatRanGivesTheTable) {
  for (const support::ScheduleRow& row : support::schedule_table()) {
    SCOPED_TRACE(testing::Message() << row.name << " " << row.ranks << " " << row.micro_batches);
    const auto list = schedule::make_schedule(row.name, {.ranks = row.ranks, .micro_batches = row.micro_batches});
    if (list.chains > 1) {
      continue;  // no job runs a list that holds stages twice
    }
    const auto own = ran(row.name, list);
    EXPECT_EQ(own, list);
    support::expect_figures(own, row);
  }
}

// Of 8 micro-batches of 4 rows each: what crosses from stage to stage, forward and backward, between ranks.
TEST(ScheduleBytes, BoundaryValuesCrossOnceInEachDirection) {
  constexpr int64_t kBlocks = 16, kRows = 4, kValue = kRows * kWidth * 4;
  const auto boundaries_of = [](const std::string& name) -> int64_t {
    const std::vector<int64_t> ranks =
        schedule::make_schedule(name, {.ranks = kStages, .micro_batches = kMicroBatches}).rank_of_stage;
    int64_t count = 0;
    for (size_t i = 1; i < ranks.size(); ++i) {
      count += ranks[i] != ranks[i - 1];
    }
    return count;
  };
  EXPECT_EQ(boundaries_of("zbv"), 2 * boundaries_of("1f1b"));
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipe-v"}) {
    SCOPED_TRACE(name);
    const trace::Ledger ledger = step_of(name, kBlocks, kRows).ledger;
    EXPECT_EQ(ledger.calls_of("send", "pp"), 2 * boundaries_of(name) * kMicroBatches);
    // The ledger has the mean over the line.
    EXPECT_EQ(kStages * ledger.bytes_of("send", "pp"), 2 * boundaries_of(name) * kMicroBatches * kValue);
  }
}

// A block that runs again reads what came from the stage before it, which is not sent again.
TEST(ScheduleBytes, RecomputedBlocksSendNothingAgain) {
  for (const char* name : {"1f1b", "zbv"}) {
    SCOPED_TRACE(name);
    const trace::Ledger once = step_of(name, 16, 4).ledger, again = step_of(name, 16, 4, {"layers.*"}).ledger;
    EXPECT_GT(once.calls_of("send", "pp"), 0);
    EXPECT_EQ(again.calls_of("send", "pp"), once.calls_of("send", "pp"));
    EXPECT_EQ(again.bytes_of("send", "pp"), once.bytes_of("send", "pp"));
  }
}

}  // namespace
}  // namespace tessera::ranks::schedule_bytes_test
