// Loops of several passes on meshes that shard, in `exact` numerics, where gradients are merged in every pass. They
// have the bits of one rank, and hold after m passes as many parts of the rank as m has ones in base two: at most 1 +
// log2 M of M.

#include <bit>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallel/forward_pass.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::exact_loops_test {
namespace {

using plan::Sharding;
using support::bytes_of;

constexpr int64_t kSamples = 16, kLength = 16, kVocabulary = 512;  // of a step
constexpr int64_t kSlack = 16384;                                  // bytes of scalars, sites and the like

struct Loop {
  std::string mesh;
  int64_t passes = 1;
  Sharding sharding = Sharding::kParameters;
  bool is_tied = false;
  bool reads_gradients = false;  // after every pass
};

// What one rank saw of two steps.
struct Account {
  int64_t own = 0;                 // bytes of its parts of the parameters
  std::vector<int64_t> held;       // by gradients, after each pass of the second step
  std::vector<at::Tensor> values;  // of the gradients then, whole
  int64_t merges = 0;              // collectives that merged them over the axis that shards, in that step
};

models::Llama make_model(const Loop& loop) {
  torch::manual_seed(7);
  models::LlamaConfig config;
  config.vocab_size = kVocabulary, config.dim = 128, config.layers = 4, config.heads = 4, config.kv_heads = 4;
  config.hidden = 352, config.max_seq = kLength, config.tie_embeddings = loop.is_tied;
  return parallel::deferred([&] { return models::Llama(config); });
}

Account run_loop(const Loop& loop) {
  const int64_t rank = comm::RankContext::require().rank;
  dtensor::set_numerics(Numerics::kExact, {.batch = kSamples});
  auto model = make_model(loop);
  const auto plan = parallel::generate_plan(
      *model, {.mesh = Mesh::parse(loop.mesh), .sharding = loop.sharding, .heads = 4, .kv_heads = 4});
  parallel::place(*model, plan);
  parallel::ForwardPasses forward(plan, loop.passes);
  const int64_t rows = kSamples / loop.passes;
  const at::Tensor all = at::arange(kSamples * (kLength + 1)).remainder(kVocabulary).reshape({kSamples, kLength + 1});
  Account account;
  for (const bool is_last : {false, true}) {
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
    const int64_t before = bytes_of(rank).live;
    comm::RankContext::require().ledger.clear();
    for (int64_t pass = 0; pass < loop.passes; ++pass) {
      const at::Tensor now = all.narrow(0, pass * rows, rows);
      const auto batch = forward.begin(
          {{"tokens", now.narrow(1, 0, kLength).contiguous()}, {"targets", now.narrow(1, 1, kLength).contiguous()}});
      const at::Tensor loss = model->loss(batch[0], batch[1]) / loop.passes;
      forward.end();
      loss.backward();
      for (const at::Tensor& parameter : model->parameters()) {
        if (loop.reads_gradients && parameter.grad().defined()) {
          to_local(parameter.grad());
        }
      }
      if (is_last) {
        account.held.push_back(bytes_of(rank).live - before);
      }
    }
  }
  account.merges = comm::RankContext::require().ledger.calls_of("exact_merge", "fsdp");
  for (const at::Tensor& parameter : model->parameters()) {
    account.own += static_cast<int64_t>(to_local(parameter).nbytes());
    account.values.push_back(full_tensor(parameter.grad()));
  }
  return account;
}

std::vector<Account> accounts_of(const Loop& loop) {
  support::count_allocations();
  std::vector<Account> accounts(static_cast<size_t>(Mesh::parse(loop.mesh).size()));
  comm::run_ranks(static_cast<int64_t>(accounts.size()),
                  [&](int64_t rank) { accounts[static_cast<size_t>(rank)] = run_loop(loop); }, {.intra_op_threads = 1});
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

TEST(ExactLoops, HoldAPartOfEachNode) {
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t passes : {1, 2, 4}) {
      const auto accounts = accounts_of({c10::str("fsdp=", ranks), passes});
      std::cout << ranks << " ranks, " << passes << " passes: parts of " << accounts.front().own
                << " bytes, gradients hold " << at::IntArrayRef(accounts.front().held) << "\n";
      EXPECT_LE(excess(accounts), 0) << ranks << " ranks, " << passes << " passes";
    }
  }
}

// The table, four layers, the last norm and the head; a tied table has two uses of one group.
TEST(ExactLoops, OneCollectiveMergesTheGradientsOfAGroupInAPass) {
  for (const int64_t passes : {1, 2}) {
    EXPECT_EQ(accounts_of({.mesh = "fsdp=2", .passes = passes}).front().merges, 7 * passes);
    EXPECT_EQ(accounts_of({.mesh = "fsdp=2", .passes = passes, .is_tied = true}).front().merges, 6 * passes);
  }
}

TEST(ExactLoops, GradientsThatAreReadHoldTheirValuesAlone) {
  EXPECT_LE(excess(accounts_of({.mesh = "fsdp=4", .reads_gradients = true})), 0);
}

TEST(ExactLoops, GradientsThatAreMergedOnceFailTheCheck) {
  EXPECT_GT(excess(accounts_of({.mesh = "fsdp=4", .sharding = Sharding::kState})), 0);
}

std::vector<Loop> every_loop(bool is_tied) {
  std::vector<Loop> loops;
  for (const char* mesh : {"fsdp=2", "fsdp=3", "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2"}) {
    for (const int64_t passes : {1, 2, 4}) {
      loops.push_back({mesh, passes, Sharding::kParameters, is_tied});
      loops.push_back({mesh, passes, Sharding::kParameters, is_tied, true});
      loops.push_back({mesh, passes, Sharding::kState, is_tied});
    }
  }
  return loops;
}

TEST(ExactLoops, HaveTheBitsOfOneRank) {
  for (const bool is_tied : {false, true}) {
    const auto one = accounts_of({.mesh = "1", .is_tied = is_tied}).front().values;
    for (const Loop& loop : support::sampled(every_loop(is_tied), 6, is_tied ? "tied" : "")) {
      const auto accounts = accounts_of(loop);
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(at::equal(accounts.front().values[i], one[i]))
            << loop.mesh << ", " << loop.passes << " passes, gradient " << i
            << (loop.reads_gradients ? ", read between" : "");
      }
    }
  }
}

}  // namespace
}  // namespace tessera::ranks::exact_loops_test
