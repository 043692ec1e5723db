// Jobs of several passes on meshes that shard, in `exact` numerics, where the plan merges gradients in every pass.
// Samples are dealt pass by pass, so each pass completes a node of the tree of samples: gradients have the bits of one
// rank, and a rank holds after m passes as many of its parts of them as m has ones in base two.

#include <bit>
#include <limits>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallel/step_passes.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/heard_warnings.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::exact_passes_test {
namespace {

using plan::Sharding;
using support::bytes_of;

constexpr int64_t kSamples = 16, kLength = 16, kVocabulary = 512;  // of a step
constexpr int64_t kSlack = 16384;                                  // bytes of the batch, scalars, sites and the like

struct Program {
  std::string mesh;
  int64_t passes = 1;
  Sharding sharding = Sharding::kParameters;
  std::string schedule = "";
  bool is_local = false;  // each rank passes its own rows
  int64_t leaves = kSamples;
};

// What one rank saw of the second of two steps.
struct Account {
  int64_t own = 0;                     // bytes of its parts of the parameters
  std::vector<int64_t> held;           // by gradients, after each pass (of a schedule, after the last one)
  int64_t merges = 0;                  // collectives that merged them
  std::vector<layout::Range> samples;  // that it read for each pass
};

models::Llama make_model() {
  torch::manual_seed(7);
  models::LlamaConfig config;
  config.vocab_size = kVocabulary, config.dim = 128, config.layers = 4, config.heads = 4, config.kv_heads = 4;
  config.hidden = 352, config.max_seq = kLength;
  return parallel::deferred([&] { return models::Llama(config); });
}

models::Llama place_model(const Program& program, plan::Plan& plan) {
  dtensor::set_numerics(dtensor::Numerics::kExact, {.batch = program.leaves});
  auto model = make_model();
  plan = parallel::generate_plan(*model, {.mesh = Mesh::parse(program.mesh),
                                          .sharding = program.sharding,
                                          .schedule = program.schedule,
                                          .heads = 4,
                                          .kv_heads = 4});
  parallel::place(*model, plan);
  return model;
}

std::vector<at::Tensor> batch_of_step() {
  const at::Tensor all = at::arange(kSamples * (kLength + 1)).remainder(kVocabulary).reshape({kSamples, kLength + 1});
  return {all.narrow(1, 0, kLength).contiguous(), all.narrow(1, 1, kLength).contiguous()};
}

Account account_of_rank(const Program& program, int64_t rank, int64_t ranks) {
  Account account;
  plan::Plan plan;
  auto model = place_model(program, plan);
  for (const at::Tensor& parameter : model->parameters()) {
    account.own += static_cast<int64_t>(to_local(parameter).nbytes());
  }
  int64_t before = 0;
  const bool is_in_turn = program.schedule.empty();
  parallel::Job job(
      model.ptr(), plan,
      [&](const std::vector<at::Tensor>& batch) {
        account.held.push_back(bytes_of(rank).live - before);
        return model->loss(batch[0], batch[1]);
      },
      {.accumulate = program.passes, .batch = program.is_local ? parallel::Batch::kLocal : parallel::Batch::kWhole});
  std::vector<at::Tensor> batch = batch_of_step();
  for (at::Tensor& tensor : batch) {
    tensor = program.is_local ? tensor.narrow(0, rank * kSamples / ranks, kSamples / ranks) : tensor;
  }
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    account.held.clear();
    comm::RankContext::require().ledger.clear();
    before = bytes_of(rank).live;
    job(batch[0], batch[1]).backward();
    account.held.push_back(bytes_of(rank).live - before);
  }
  account.held.erase(account.held.begin(), is_in_turn ? account.held.begin() + 1 : account.held.end() - 1);
  for (const trace::LedgerEntry& entry : comm::RankContext::require().ledger.entries()) {
    if (entry.op == "gradients" && entry.collective == "exact_merge") {
      account.merges += entry.calls;
    }
  }
  for (int64_t pass = 0; pass < program.passes; ++pass) {
    account.samples.push_back(job.rows_of(kSamples, pass));
  }
  return account;
}

std::vector<Account> accounts_of(const Program& program) {
  support::count_allocations();
  const int64_t ranks = Mesh::parse(program.mesh).size();
  std::vector<Account> accounts(static_cast<size_t>(ranks));
  comm::run_ranks(ranks,
                  [&](int64_t rank) { accounts[static_cast<size_t>(rank)] = account_of_rank(program, rank, ranks); },
                  {.intra_op_threads = 1});
  return accounts;
}

// By how many bytes the gradients of some rank exceed the form after some pass.
int64_t excess(const std::vector<Account>& accounts) {
  int64_t most = std::numeric_limits<int64_t>::min();
  for (const Account& account : accounts) {
    for (size_t pass = 0; pass < account.held.size(); ++pass) {
      most = std::max(most, account.held[pass] - std::popcount(pass + 1) * account.own);
    }
  }
  return most - kSlack;
}

TEST(ExactPasses, HoldAPartOfEachNode) {
  for (const char* mesh : {"fsdp=2", "fsdp=4", "fsdp=2,tp=2"}) {
    for (const int64_t passes : {1, 2, 4}) {
      for (const bool is_local : {false, true}) {
        if (is_local && std::string(mesh).find("tp") != std::string::npos) {
          continue;
        }
        const auto accounts = accounts_of({.mesh = mesh, .passes = passes, .is_local = is_local});
        std::cout << mesh << ", " << passes << " passes" << (is_local ? ", own rows" : "") << ": parts of "
                  << accounts.front().own << " bytes, gradients hold " << at::IntArrayRef(accounts.front().held)
                  << "\n";
        EXPECT_EQ(accounts.front().held.size(), passes);
        EXPECT_LE(excess(accounts), 0) << mesh << ", " << passes << " passes";
      }
    }
  }
}

TEST(ExactPasses, GradientsThatAreMergedOnceFailTheCheck) {
  EXPECT_GT(excess(accounts_of({.mesh = "fsdp=4", .passes = 2, .sharding = Sharding::kState})), 0);
}

// What a step of two products sends on rank 0 to merge gradients, and in how many collectives.
std::pair<int64_t, int64_t> sent_by_products(int64_t ranks, int64_t passes, Sharding sharding) {
  std::pair<int64_t, int64_t> sent;
  const auto mesh = Mesh::parse(c10::str("fsdp=", ranks));
  run_on(mesh, [&](int64_t rank) {
    dtensor::set_numerics(dtensor::Numerics::kExact, {.batch = kSamples});
    const auto product = [](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
    };
    auto model = parallel::deferred([&] { return torch::nn::Sequential(product(64, 128), product(128, 32)); });
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .sharding = sharding});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable {
                        return torch::mse_loss(model->forward(batch[0]), batch[1]);
                      },
                      {.accumulate = passes});
    comm::RankContext::require().ledger.clear();
    job(waves({kSamples, 64}).to(at::kFloat), waves({kSamples, 32}).to(at::kFloat)).backward();
    for (const trace::LedgerEntry& entry : comm::RankContext::require().ledger.entries()) {
      if (rank == 0 && entry.collective == "exact_merge" && entry.bytes > 1024) {  // not the loss
        sent.first += entry.bytes, sent.second += entry.calls;
      }
    }
  });
  return sent;
}

TEST(ExactPasses, BytesAreClosedForms) {
  const int64_t bytes = (128 * 64 + 32 * 128) * 4;
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t passes : {1, 2, 4}) {
      for (const Sharding sharding : {Sharding::kParameters, Sharding::kGradients, Sharding::kState}) {
        SCOPED_TRACE(c10::str(ranks, " ranks, ", passes, " passes, ", plan::name_of(sharding)));
        const auto [sent, calls] = sent_by_products(ranks, passes, sharding);
        const int64_t times = sharding == Sharding::kState ? 1 : passes;
        EXPECT_EQ(sent, times * bytes * (ranks - 1) / ranks);
        if (sharding != Sharding::kState) {
          EXPECT_EQ(calls, 2 * passes);
        }
      }
    }
  }
}

// The table, four layers, the last norm and the head are groups.
TEST(ExactPasses, OneCollectiveMergesTheGradientsOfAGroupInAPass) {
  for (const int64_t passes : {1, 2}) {
    EXPECT_EQ(accounts_of({.mesh = "fsdp=2", .passes = passes}).front().merges, 7 * passes);
  }
}

// Two layers and an end of the model a stage.
TEST(ExactPasses, SoUnderASchedule) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const auto accounts = accounts_of({.mesh = "pp=2,fsdp=2", .passes = 4, .schedule = schedule});
    for (size_t rank = 0; rank < 4; ++rank) {
      const bool is_first = rank / 2 == 0;
      EXPECT_EQ(accounts[rank].merges, 4 * (is_first ? 3 : 4)) << schedule << " " << rank;
      EXPECT_LE(accounts[rank].held.back(), accounts[rank].own + kSlack) << schedule << " " << rank;
    }
  }
}

// What gradients hold after each pass of a step that is dealt so, where each pass merges them.
std::vector<Account> accounts_of_deal(plan::Deal deal) {
  support::count_allocations();
  const Program program = {.mesh = "fsdp=4", .passes = 2};
  std::vector<Account> accounts(4);
  comm::run_ranks(4,
                  [&](int64_t rank) {
                    Account& account = accounts[static_cast<size_t>(rank)];
                    plan::Plan plan;
                    auto model = place_model(program, plan);
                    plan::Rows rows(plan.mesh, plan.batch_axes, kSamples, program.passes, 1, deal);
                    parallel::StepPasses passes{.parameters = model->parameters()};
                    for (int64_t k = 0; k < program.passes; ++k) {
                      passes.samples.push_back(parallel::samples_of(rows, k));
                    }
                    passes.batch = [&](int64_t k) {
                      std::vector<at::Tensor> parts;
                      const layout::Range mine = rows.samples_of(comm::RankContext::require().coord(plan.mesh), k);
                      for (const at::Tensor& tensor : batch_of_step()) {
                        const auto spec =
                            parallel::spec_of(plan.mesh, passes.samples[k], {passes.samples[k].count, kLength}, tensor,
                                              /*has_positions=*/true);
                        parts.push_back(dtensor::wrap(tensor.narrow(0, mine.begin, mine.size()).contiguous(), spec,
                                                      passes.samples[k].origin));
                      }
                      return parts;
                    };
                    const int64_t before = bytes_of(rank).live;
                    passes.loss = [&](int64_t, const std::vector<at::Tensor>& batch) {
                      account.held.push_back(bytes_of(rank).live - before);
                      return model->loss(batch[0], batch[1]);
                    };
                    parallel::Step step(plan);
                    step.begin({.number = 0});
                    const auto result = run_passes(step, parallel::passes_in_turn(program.passes, true), passes);
                    step.end();
                    account.held.push_back(bytes_of(rank).live - before);
                    account.held.erase(account.held.begin());
                    for (const at::Tensor& parameter : model->parameters()) {
                      account.own += static_cast<int64_t>(to_local(parameter).nbytes());
                    }
                  },
                  {.intra_op_threads = 1});
  return accounts;
}

TEST(ExactPasses, SamplesThatAreDealtByBlockFailTheCheck) {
  EXPECT_LE(excess(accounts_of_deal(plan::Deal::kByPass)), 0);
  EXPECT_GT(excess(accounts_of_deal(plan::Deal::kByBlock)), 0);
}

TEST(ExactPasses, CutEachPassOverTheRanks) {
  const auto samples_of_rank = [](const Program& program) { return accounts_of(program).front().samples; };
  using Ranges = std::vector<layout::Range>;
  EXPECT_EQ(samples_of_rank({.mesh = "fsdp=2", .passes = 2}), (Ranges{{0, 4}, {8, 12}}));
  EXPECT_EQ(samples_of_rank({.mesh = "fsdp=2", .passes = 2, .sharding = Sharding::kState}), (Ranges{{0, 4}, {4, 8}}));
}

// Four ranks have no share each of two leaves.
TEST(ExactPasses, ALatticeThatWouldLeaveRanksIdleIsNamed) {
  support::HeardWarnings heard;
  support::count_allocations();
  std::vector<layout::Range> samples;
  comm::run_ranks(4,
                  [&](int64_t rank) {
                    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
                    const Account account = account_of_rank({.mesh = "fsdp=4", .passes = 4, .leaves = 8}, rank, 4);
                    if (rank == 0) {
                      samples = account.samples;
                    }
                  },
                  {.intra_op_threads = 1});
  EXPECT_EQ(samples[0], (layout::Range{0, 1}));
  EXPECT_EQ(samples[1], (layout::Range{1, 2}));
  ASSERT_EQ(heard.said().size(), 1u);
  EXPECT_SAYS(
      heard.said()[0],
      "gradients are merged once a step and not in each of 4 micro-batches, for the 8 batch leaves of 16 samples "
      "do not give each of 4 ranks some of every one. Accepted: a lattice with batch=16");
}

TEST(ExactPasses, HaveTheBitsOfOneRank) {
  const Setting setting = {
      .steps = 3, .batch = 32, .length = 8, .lattice = sums::Lattice{.batch = 32, .sequence = 4, .feature = 4}};
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16;
  config.dropout = 0.1, config.tie_embeddings = true;
  std::vector<Case> cases;
  for (const char* mesh : {"fsdp=2", "fsdp=3", "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2"}) {
    for (const int64_t passes : {1, 2, 4}) {
      for (const Sharding sharding : {Sharding::kParameters, Sharding::kGradients}) {
        cases.push_back({mesh, false, passes, sharding});
      }
    }
  }
  cases.push_back({"pp=2,fsdp=2", false, 4, Sharding::kParameters, "1f1b"});
  const Curve one = train<models::Gpt>(setting, config, {});
  for (const Case& c : support::sampled(cases, 6)) {
    EXPECT_EQ(difference(one, train<models::Gpt>(setting, config, c)), "") << c.str();
  }
}

}  // namespace
}  // namespace tessera::ranks::exact_passes_test
