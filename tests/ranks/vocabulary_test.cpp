// A vocabulary that is cut over the stages of a pipeline: one device's bits, and the order, the parameters and the
// activations that its lists say.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/schedule/families/family.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/replay.h"
#include "tests/ranks/even_block.h"
#include "tests/ranks/recorded_passes.h"
#include "tests/ranks/stage_runs.h"
#include "tests/support/counting_allocator.h"

namespace tessera::ranks::vocabulary_test {
namespace {

using schedule::Schedule;

constexpr auto kShards = plan::Sharding::kParameters;
constexpr int64_t kWidth = 32, kRows = 8 * kWidth;

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = 3, .batch = 8, .lattice = lattice, .clip = clip_to_half};
}

sums::Lattice lattice() { return {.batch = 8, .sequence = 4, .feature = 8}; }

TEST(Vocabulary, WithoutAScheduleInExactHasOneHash) {
  expect_one_ranks_bits<models::Llama>(
      setting(lattice()), stage_llama(4), 1,
      {{"pp=2", false, 1, kShards, "", 1}, {"pp=4", false, 4, kShards, "", 1}, {"pp=2,tp=2", true, 1, kShards, "", 1}});
  expect_one_ranks_bits<models::Llama>(setting(lattice()), stage_llama(3, true), 1,
                                       {{"pp=3", false, 2, kShards, "", 1}});
  expect_one_ranks_bits<models::Gpt>(setting(lattice()), stage_gpt(3, true), 1,
                                     {{"pp=2", false, 1, kShards, "", 1},
                                      {"pp=4", false, 2, kShards, "", 1},
                                      {"pp=2,dp=2", false, 2, kShards, "", 1}});
}

std::vector<Case> cases_of(const std::string& schedule) {
  std::vector<Case> cases;
  for (const char* mesh : {"pp=2", "pp=4"}) {
    for (const int64_t barriers : {1, 2}) {
      cases.push_back({mesh, false, 4, kShards, schedule, barriers});
    }
  }
  return cases;
}

TEST(Vocabulary, In1F1BInExactHasOneHash) {
  expect_one_ranks_bits<models::Llama>(setting(lattice()), stage_llama(4), 4, cases_of("1f1b"));
  expect_one_ranks_bits<models::Gpt>(setting(lattice()), stage_gpt(3, true), 4, cases_of("1f1b"));
}

TEST(Vocabulary, InVHalfInExactHasOneHash) {
  expect_one_ranks_bits<models::Llama>(setting(lattice()), stage_llama(4), 4, cases_of("v-half"));
  expect_one_ranks_bits<models::Gpt>(setting(lattice()), stage_gpt(3, true), 4, cases_of("v-half"));
}

TEST(Vocabulary, BesideOtherAxesInExactHasOneHash) {
  std::vector<Case> cases;
  for (const char* mesh : {"pp=2,tp=2", "pp=2,dp=2"}) {
    cases.push_back({mesh, false, 4, kShards, "1f1b", 1});
    cases.push_back({mesh, mesh == std::string("pp=2,tp=2"), 4, kShards, "v-half", 2});
  }
  expect_one_ranks_bits<models::Llama>(setting(lattice()), stage_llama(4), 4, cases);
  expect_one_ranks_bits<models::Gpt>(setting(lattice()), stage_gpt(3, true), 4, cases);
}

// Five micro-batches on three ranks, of which each layer runs again in backward.
TEST(Vocabulary, OddSizesRecomputedHaveOneHash) {
  Setting odd = setting(sums::Lattice{.batch = 5, .sequence = 4, .feature = 8});
  odd.batch = 5, odd.recompute = {"transformer.h.*"};
  expect_one_ranks_bits<models::Gpt>(odd, stage_gpt(4, true), 5,
                                     {{"pp=3", false, 5, kShards, "1f1b", 1},
                                      {"pp=3", false, 5, kShards, "1f1b", 2},
                                      {"pp=3", false, 5, kShards, "v-half", 1},
                                      {"pp=3", false, 5, kShards, "v-half", 2}});
}

// In `fast` the softmax is summed in another order than on one device, so its bits are others: the control of the tests
// above. It is as near to training in float64.
TEST(Vocabulary, InFastIsAsNearAsOneDevice) {
  Setting fast = setting({});
  fast.threads = 1;
  const models::LlamaConfig config = stage_llama(4);
  const Curve in_doubles = train_in_doubles<models::Llama>(fast, config);
  const Curve one = train<models::Llama>(fast, config, {.accumulate = 4});
  const Distance by_one = distance(one, in_doubles);
  for (const char* schedule : {"", "1f1b", "v-half"}) {
    for (const int64_t barriers : {1, 2}) {
      const Case c{"pp=4", false, 4, kShards, schedule, barriers};
      const Curve cut = train<models::Llama>(fast, config, c);
      EXPECT_LE(times_as_far(distance(cut, in_doubles), by_one), kRounding) << c.str();
      EXPECT_NE(difference(one, cut), "") << c.str();
    }
  }
}

// A step of each rank.
struct Measured {
  Schedule ran;
  std::vector<int64_t> parameter_bytes;
  std::vector<int64_t> peaks;  // above what is held between steps, in bytes
};

struct Sizes {
  std::string schedule;
  int64_t ranks, micro_batches, barriers;

  Schedule list(int64_t own_barriers) const {
    return schedule::make_schedule(schedule,
                                   {.ranks = ranks, .micro_batches = micro_batches, .barriers = own_barriers});
  }
};

template <typename Model, typename Config>
Measured step_of(const Config& config, const Sizes& sizes, int64_t samples, int64_t tokens) {
  support::count_allocations();
  const auto ranks = static_cast<size_t>(sizes.ranks);
  Measured measured{.ran = sizes.list(sizes.barriers),
                    .parameter_bytes = std::vector<int64_t>(ranks),
                    .peaks = std::vector<int64_t>(ranks)};
  run_on(Mesh({{"pp", sizes.ranks}}), [&](int64_t rank) {
    auto model = parallel::deferred([&] { return Model(config); });
    const auto plan = parallel::generate_plan(
        *model, {.mesh = Mesh({{"pp", sizes.ranks}}), .schedule = sizes.schedule, .vocabulary = sizes.barriers});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.accumulate = sizes.micro_batches});
    for (const at::Tensor& parameter : model->parameters()) {
      measured.parameter_bytes[static_cast<size_t>(rank)] += to_local(parameter).nbytes();
    }
    const at::Tensor ids = at::ones({samples * sizes.micro_batches, tokens}, at::kLong);
    job(ids, ids).backward();  // gradients are there from now on
    const RecordedPasses recorded;
    const int64_t before = support::bytes_of(rank).live;
    support::reset_peak(rank);
    job(ids, ids).backward();
    measured.peaks[static_cast<size_t>(rank)] = support::bytes_of(rank).peak - before;
    measured.ran.ranks[static_cast<size_t>(rank)] = recorded.actions();
  });
  return measured;
}

// A table, equal blocks, so that every stage keeps as much, and a head.
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(int64_t blocks) {
    table = register_module("table", torch::nn::Embedding(kWords, kNarrow));
    for (int64_t i = 0; i < blocks; ++i) {
      layers->push_back(EvenBlock(kNarrow));
    }
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kNarrow, kWords).bias(false)));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets) {
    at::Tensor x = table(ids);
    for (const auto& layer : *layers) {
      x = layer->as<EvenBlock>()->forward(x);
    }
    return at::cross_entropy_loss(head(x).flatten(0, 1), targets.flatten());
  }

  static constexpr int64_t kWords = 16, kNarrow = 16;
  torch::nn::Embedding table = nullptr;
  torch::nn::ModuleList layers;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Words);

// In units of what one micro-batch leaves on a stage, by what a token more of each micro-batch adds.
TEST(Vocabulary, PeaksOfActivationsAreThoseOfTheLists) {
  constexpr int64_t kBlocks = 96, kFew = 32, kMany = 96;
  constexpr double kUnit = 1.0 * EvenBlockImpl::kKept * WordsImpl::kNarrow * sizeof(float) * kBlocks / 4;
  for (const char* name : {"1f1b", "v-half"}) {
    for (const int64_t barriers : {1, 2}) {
      const Sizes sizes{name, 4, 8, barriers};
      const auto few = step_of<Words>(kBlocks, sizes, 1, kFew).peaks,
                 many = step_of<Words>(kBlocks, sizes, 1, kMany).peaks;
      const auto said = schedule::peaks_of(sizes.list(barriers));
      for (size_t rank = 0; rank < said.size(); ++rank) {
        const double own = static_cast<double>(many[rank] - few[rank]) / (kMany - kFew) / kUnit;
        EXPECT_NEAR(own / said[rank], 1, 0.05) << name << ", " << barriers << " barriers, rank " << rank << ": " << own;
      }
    }
  }
}

double waits(const Schedule& schedule, const schedule::Costs& costs) {
  const auto replay = schedule::replay_schedule(schedule, costs);
  return replay.makespan - replay.busy[0];
}

// A micro-batch more is held for each barrier, and no rank waits longer than without.
TEST(Vocabulary, WhatRanIsTheListAndHoldsAndWaitsAsItSays) {
  for (const char* name : {"1f1b", "v-half"}) {
    for (const int64_t barriers : {1, 2}) {
      SCOPED_TRACE(c10::str(name, ", ", barriers, " barriers"));
      const Sizes sizes{name, 4, 8, barriers};
      const Schedule plain = sizes.list(0), ran = step_of<models::Llama>(stage_llama(8), sizes, 1, 4).ran;
      EXPECT_EQ(ran, sizes.list(barriers));
      EXPECT_NE(ran, sizes.list(3 - barriers));  // the control
      const auto own = schedule::peaks_of(ran), without = schedule::peaks_of(plain);
      EXPECT_EQ(*std::max_element(own.begin(), own.end()),
                *std::max_element(without.begin(), without.end()) + static_cast<double>(barriers));
      EXPECT_LE(waits(ran, {.head = 0.25, .head_backward = 0.25}), waits(plain, {}));
    }
  }
}

TEST(Vocabulary, EveryRankHasAsManyParameters) {
  models::LlamaConfig config = stage_llama(4);
  config.vocab_size = kRows;
  const auto spread = [&](const Sizes& sizes) {
    const auto bytes = step_of<models::Llama>(config, sizes, 1, 4).parameter_bytes;
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    return *most - *least;
  };
  const int64_t row = kWidth * static_cast<int64_t>(sizeof(float));
  EXPECT_LE(spread({"1f1b", 4, 4, 1}), row);          // of the norm before the head
  EXPECT_GE(spread({"1f1b", 4, 4, 0}), kRows * row);  // the control
}

TEST(Vocabulary, OfSchedulesAndMeshesThatHaveItNotIsRefused) {
  const auto plan_of = [](const std::string& mesh, const std::string& schedule, int64_t barriers) {
    models::Llama model(stage_llama(4));
    return parallel::generate_plan(*model, {.mesh = Mesh::parse(mesh), .schedule = schedule, .vocabulary = barriers});
  };
  const auto refusal = [&](const std::string& mesh, const std::string& schedule, int64_t barriers) {
    try {
      plan_of(mesh, schedule, barriers);
    } catch (const std::exception& error) {
      return base::message_of(error);
    }
    return std::string();
  };
  EXPECT_SAYS(refusal("pp=2", "zbv", 1), "zbv with embedding and head cut over ranks by 1 barriers; accepted: 0");
  EXPECT_SAYS(refusal("pp=2", "", 3), "a vocabulary with 3 barriers; accepted: 1 or 2");
  EXPECT_SAYS(refusal("pp=2,fsdp=2", "1f1b", 1), "an axis shards parameters; accepted: axes pp, dp and tp");
  EXPECT_EQ(refusal("dp=2", "1f1b", 1), "");  // there are no stages
  // A list without passes of the vocabulary, of a plan that cuts it.
  auto plan = plan_of("pp=2", "1f1b", 1);
  EXPECT_EQ(plan::Plan::from_json(plan.json()), plan);
  plan.vocabulary = 0;
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           models::Llama model(stage_llama(4));
                           parallel::place(*model, plan);
                           parallel::Job job(model.ptr(), plan,
                                             [model](const std::vector<at::Tensor>& batch) mutable {
                                               return model->loss(batch[0], batch[1]);
                                             },
                                             {.accumulate = 2});
                           const at::Tensor ids = at::ones({4, 8}, at::kLong);
                           job(ids, ids).backward();
                         }),
              "which is cut over the stages; accepted: a plan that says \"vocabulary\"");
}

}  // namespace
}  // namespace tessera::ranks::vocabulary_test
