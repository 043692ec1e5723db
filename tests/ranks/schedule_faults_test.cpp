// Steps of a pipeline's schedule that go wrong, or are odd: right, or an error on every rank, and no hang.
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallel/job.h"
#include "tests/ranks/hooked_layers.h"
#include "tests/ranks/stage_runs.h"

namespace tessera::ranks::schedule_faults_test {
namespace {

constexpr int64_t kWidth = 8;
const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "v-half"};

// A step of 6 samples in 3 micro-batches on 2 ranks; what the ranks' error says.
std::string failure_of(const std::string& schedule, std::function<void(const at::Tensor&)> in_forward,
                       std::function<void(const at::Tensor&)> in_backward = {}) {
  return failure_on(2, [&](int64_t) {
    auto model = parallel::deferred([&] { return HookedLayers(4, kWidth, in_forward, in_backward); });
    const auto plan = parallel::generate_plan(*model, {.mesh = Mesh({{"pp", 2}}), .schedule = schedule});
    auto job = parallel::parallelize(model, plan, {.accumulate = 3});
    job(waves({6, kWidth}).to(at::kFloat)).backward();
  });
}

TEST(ScheduleFaults, WhatOneStageThrowsEveryRankHears) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(c10::str("seed ", seed));
  std::mt19937 draw(seed);
  const int64_t runs = is_full() ? 100 : 24;
  for (int64_t i = 0; i < runs; ++i) {
    const std::string schedule = kSchedules[draw() % std::size(kSchedules)];
    const auto rank = static_cast<int64_t>(draw() % 2), pass = static_cast<int64_t>(draw() % 3);
    const bool in_backward = draw() % 2 == 0;
    SCOPED_TRACE(c10::str(schedule, ", rank ", rank, ", pass ", pass, in_backward ? ", backward" : ", forward"));
    std::array<std::atomic<int64_t>, 2> passes{};
    const auto fault = [&](const at::Tensor&) {
      const int64_t own = comm::RankContext::require().rank;
      TESSERA_CHECK(passes[static_cast<size_t>(own)]++ != pass || own != rank, "[test] the stage is broken");
    };
    const std::string said = in_backward ? failure_of(schedule, {}, fault) : failure_of(schedule, fault);
    EXPECT_SAYS(said, c10::str("rank ", rank, ": [test] the stage is broken"));
  }
}

TEST(ScheduleFaults, AValueThatIsReadIsRefusedByName) {
  for (const char* schedule : kSchedules) {
    SCOPED_TRACE(schedule);
    EXPECT_SAYS(failure_of(schedule, [](const at::Tensor& x) { x.sum().item(); }),
                "reads a value of another stage, by a broadcast over pp, inside of a pipeline's schedule");
  }
}

// What was sent in a step that ended by an exception is not taken for that of the next.
TEST(ScheduleFaults, AStepAfterARefusedOneIsRight) {
  const auto gradient_after = [](bool is_refused_before) {
    at::Tensor found;
    bool reads = is_refused_before;
    run_on(Mesh({{"pp", 2}}), [&](int64_t rank) {
      auto model = parallel::deferred([&] {
        return HookedLayers(
            4, kWidth, [&](const at::Tensor& x) { reads ? void(x.sum().item()) : void(); },
            std::function<void(const at::Tensor&)>());
      });
      const auto plan = parallel::generate_plan(*model, {.mesh = Mesh({{"pp", 2}}), .schedule = "1f1b"});
      auto job = parallel::parallelize(model, plan, {.accumulate = 3});
      if (is_refused_before) {
        EXPECT_THROW(job(waves({6, kWidth}, 0.11).to(at::kFloat)), std::exception);
        comm::RankContext::require().world->barrier();
        reads = false;
        comm::RankContext::require().world->barrier();
      }
      job(waves({6, kWidth}).to(at::kFloat)).backward();
      const at::Tensor whole = full_tensor(model->layers[0]->as<torch::nn::Linear>()->weight.grad());
      if (rank == 0) {
        found = whole.clone();
      }
    });
    return found;
  };
  EXPECT_TRUE(at::equal(gradient_after(false), gradient_after(true)));
}

// 7 samples in micro-batches of 3, 3 and 1; 2 layers and so 4 parts on 8 stages, of which some are empty.
TEST(ScheduleFaults, OddSizesHaveOneDevicesBits) {
  Setting setting{.steps = 2, .batch = 7, .threads = 1};
  for (const int64_t layers : {6, 2}) {
    const Curve one = train<models::Llama>(setting, stage_llama(layers), {.accumulate = 3});
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zbv"}) {
      SCOPED_TRACE(c10::str(schedule, ", ", layers, " layers"));
      const Case c{"pp=4", false, 3, plan::Sharding::kParameters, schedule};
      EXPECT_EQ(difference(one, train<models::Llama>(setting, stage_llama(layers), c)), "");
    }
  }
}

TEST(ScheduleFaults, NaNReachesEveryRank) {
  for (const char* schedule : kSchedules) {
    SCOPED_TRACE(schedule);
    run_on(Mesh({{"pp", 2}}), [&](int64_t) {
      auto model = parallel::deferred([&] { return HookedLayers(4, kWidth, nullptr, nullptr); });
      const auto plan = parallel::generate_plan(*model, {.mesh = Mesh({{"pp", 2}}), .schedule = schedule});
      auto job = parallel::parallelize(model, plan, {.accumulate = 3});
      at::Tensor batch = waves({6, kWidth}).to(at::kFloat);
      batch[4].fill_(std::nan(""));
      at::Tensor loss = job(batch);
      loss.backward();
      EXPECT_TRUE(std::isnan(loss.item().toDouble()));
      EXPECT_TRUE(std::isnan(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0)));
    });
  }
}

}  // namespace
}  // namespace tessera::ranks::schedule_faults_test
