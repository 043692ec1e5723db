// Stages of which each rank keeps parts: one rank's bits in `exact`, one device's numbers in `fast`, with a schedule
// and without; what a rank gathers, and what it holds.
#include <array>
#include <filesystem>
#include <map>

#include <unistd.h>

#include "tessera/optim/clip.h"
#include "tests/ranks/stage_runs.h"
#include "tests/support/counting_allocator.h"

namespace tessera::ranks::sharded_stages_test {
namespace {

using plan::Sharding;

models::LlamaConfig llama(int64_t layers, at::ScalarType dtype = at::kFloat) {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = layers, config.heads = 4, config.kv_heads = 4,
  config.hidden = 48, config.max_seq = 16, config.dtype = dtype;
  return config;
}

models::GptConfig gpt(bool is_tied, at::ScalarType dtype = at::kFloat) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 3, config.heads = 4, config.max_seq = 16,
  config.dropout = 0.1, config.tie_embeddings = is_tied, config.dtype = dtype;
  return config;
}

constexpr sums::Lattice kLattice = {.batch = 12, .sequence = 4, .feature = 4};

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = 3, .batch = 12, .lattice = lattice, .clip = clip_to_half};
}

template <typename Model, typename Config, typename Check>
void compare_each(const Setting& setting, const Config& config, const std::vector<Case>& cases, const Check& check) {
  for (const Case& c : cases) {
    const Curve one = train<Model>(setting, config, {.accumulate = c.accumulate});
    EXPECT_GT(*std::min_element(one.norms.begin(), one.norms.end()), 0.5);  // clipping bites
    SCOPED_TRACE(c.str());
    try {
      check(one, train<Model>(setting, config, c));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

template <typename Model, typename Config>
void expect_one_hash(const Config& config, const std::vector<Case>& cases) {
  compare_each<Model>(setting(kLattice), config, cases,
                      [](const Curve& one, const Curve& other) { EXPECT_EQ(difference(one, other), ""); });
}

template <typename Model, typename Config>
void expect_one_devices_numbers(const Config& config, const std::vector<Case>& cases) {
  Setting on_one_thread = setting({});
  on_one_thread.threads = 1;
  compare_each<Model>(on_one_thread, config, cases, [](const Curve& one, const Curve& other) {
    const Distance apart = distance(other, one);
    EXPECT_LE(std::max({apart.losses, apart.norms, apart.parameters}), 1e-12) << str(apart);
  });
}

TEST(ShardedStages, InExactHaveOneHash) {
  expect_one_hash<models::Llama>(llama(3), {{"pp=2,fsdp=2"},
                                            {"fsdp=2,pp=2", false, 3, Sharding::kGradients},
                                            {"pp=2,fsdp=2,tp=2", true, 2},
                                            {"pp=2,dp_shard=2,fsdp=2", false, 2, Sharding::kSecondary}});
  expect_one_hash<models::Gpt>(gpt(true), {{"pp=2,fsdp=2", false, 2, Sharding::kState}, {"fsdp=3,pp=2"}});
  expect_one_hash<models::Gpt>(gpt(false), {{"pp=2,fsdp=2,tp=2"}});
}

TEST(ShardedStages, InFastHaveOneDevicesNumbers) {
  expect_one_devices_numbers<models::Llama>(llama(3, at::kDouble),
                                            {{"pp=2,fsdp=2", false, 2},
                                             {"fsdp=2,pp=2", false, 1, Sharding::kGradients},
                                             {"pp=2,fsdp=2,tp=2", true, 2},
                                             {"pp=2,dp_shard=2,fsdp=2", false, 2, Sharding::kSecondary}});
  expect_one_devices_numbers<models::Gpt>(gpt(true, at::kDouble),
                                          {{"pp=2,fsdp=2", false, 3}, {"fsdp=2,pp=2", false, 2, Sharding::kState}});
}

TEST(ShardedStages, SchedulesInExactHaveOneHash) {
  expect_one_hash<models::Llama>(llama(4), {{"pp=2,fsdp=2", false, 4, Sharding::kParameters, "1f1b"},
                                            {"fsdp=2,pp=2", false, 4, Sharding::kGradients, "interleaved"}});
  expect_one_hash<models::Gpt>(gpt(true), {{"pp=2,fsdp=2", false, 4, Sharding::kParameters, "interleaved"},
                                           {"pp=2,fsdp=2,tp=2", true, 3, Sharding::kState, "gpipe"}});
}

TEST(ShardedStages, SchedulesInFastHaveOneDevicesNumbers) {
  expect_one_devices_numbers<models::Llama>(llama(4, at::kDouble),
                                            {{"pp=2,fsdp=2", false, 4, Sharding::kParameters, "interleaved"},
                                             {"pp=2,fsdp=2,tp=2", true, 4, Sharding::kParameters, "interleaved"},
                                             {"fsdp=2,pp=2", false, 3, Sharding::kGradients, "gpipe"},
                                             {"pp=2,fsdp=2", false, 4, Sharding::kState, "interleaved"}});
  expect_one_devices_numbers<models::Gpt>(gpt(true, at::kDouble),
                                          {{"pp=2,fsdp=2", false, 4, Sharding::kParameters, "1f1b"},
                                           {"pp=2,fsdp=2", false, 4, Sharding::kParameters, "interleaved"}});
}

// Parameters are cast before they are gathered, and gradients merged in float32.
TEST(ShardedStages, NarrowParametersHaveOneHash) {
  Setting narrow = setting(kLattice);
  narrow.precision = {.compute = at::kBFloat16, .reduce = at::kFloat};
  const auto check = [](const Curve& one, const Curve& other) { EXPECT_EQ(difference(one, other), ""); };
  compare_each<models::Llama>(
      narrow, llama(3), {{"pp=2,fsdp=2", false, 2}, {"pp=2,fsdp=2", false, 2, Sharding::kParameters, "1f1b"}}, check);
  compare_each<models::Gpt>(narrow, gpt(true), {{"fsdp=2,pp=2", false, 1, Sharding::kGradients}}, check);
}

TEST(ShardedStages, ACheckpointMovesBetweenMeshes) {
  const auto folder = std::filesystem::temp_directory_path() / c10::str("tessera_sharded_stages_", ::getpid());
  const Curve whole = train<models::Gpt>(setting(kLattice), gpt(true), {});
  const std::vector<std::pair<std::string, std::string>> moves = {{"pp=2,fsdp=2", "fsdp=2"}, {"pp=2,fsdp=2", "pp=2"},
                                                                  {"pp=2,fsdp=2", "1"},      {"fsdp=3", "pp=2,fsdp=2"},
                                                                  {"pp=2", "fsdp=2,pp=2"},   {"1", "pp=2,fsdp=3"}};
  for (const auto& [from, to] : moves) {
    std::filesystem::remove_all(folder);
    expect_goes_on<models::Gpt>(setting(kLattice), gpt(true), folder.string(), from, to, whole);
  }
  std::filesystem::remove_all(folder);
}

// A group of the options may be on several stages, and is gathered by each for itself.
TEST(ShardedStages, AGroupOnTwoStagesIsTwo) {
  const auto mesh = Mesh::parse("pp=2,fsdp=2");
  std::array<at::Tensor, 2> norms;
  for (const bool is_placed : {false, true}) {
    const auto train = [&](int64_t rank) {
      dtensor::manual_seed(3);
      auto model = parallel::deferred([] { return models::Llama(llama(2, at::kDouble)); });
      const auto plan = parallel::generate_plan(
          *model, {.mesh = is_placed ? mesh : Mesh::parse("1"), .groups = {{.pattern = "model"}}});
      parallel::place(*model, plan);
      parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
        return model->loss(batch[0], batch[1]);
      });
      const at::Tensor ids = at::arange(4 * 16).reshape({4, 16}).remainder(64);
      comm::RankContext::require().ledger.clear();
      job(ids, ids).backward();
      if (is_placed) {  // `model`, and on the last stage the head
        EXPECT_EQ(comm::RankContext::require().ledger.calls_of("reduce_scatter", "fsdp"), rank / 2 == 0 ? 1 : 2);
      }
      const at::Tensor norm = full_tensor(optim::grad_norm(model->parameters()));
      if (rank == 0) {
        norms[is_placed] = norm;
      }
    };
    comm::run_ranks(is_placed ? 4 : 1, train, {.intra_op_threads = 1});
  }
  EXPECT_LE(at::abs(norms[0] / norms[1] - 1).item().toDouble(), 1e-12);
}

// What a rank says of the second of two steps, in bytes.
struct Account {
  int64_t own = 0;            // its parts of the parameters
  int64_t left = 0;           // what lives after the step: parameters, gradients and moments
  int64_t pass = 0;           // at most in forward and backward, above these and the gradients of the passes before
  int64_t largest_group = 0;  // of its stage, as it is gathered
  int64_t gathered = 0, merged = 0;
};

models::LlamaConfig large() {
  models::LlamaConfig config = llama(4);
  config.vocab_size = 256, config.dim = 64, config.hidden = 176;
  return config;
}

Account account_of_rank(const Mesh& mesh, int64_t rank, int64_t samples, const Case& c) {
  Account account;
  const int64_t before = support::bytes_of(rank).live;
  auto model = parallel::deferred([] { return models::Llama(large()); });
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto plan = parallel::generate_plan(
      *model, {.mesh = mesh, .sharding = c.sharding, .schedule = c.schedule, .heads = 4, .kv_heads = 4});
  parallel::place(*model, plan, &optimizer);
  std::map<std::string, int64_t> groups;
  for (const auto& item : model->named_parameters()) {
    account.own += static_cast<int64_t>(to_local(item.value()).nbytes());
    const bool is_here = spec_of(item.value())->holds(*mesh.coord_of(rank));
    groups[plan.group_of(item.key())] += is_here ? item.value().numel() * 4 : 0;
  }
  for (const auto& [name, bytes] : groups) {
    account.largest_group = std::max(account.largest_group, bytes);
  }
  parallel::Job job(model.ptr(), plan,
                    [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                    {.accumulate = c.accumulate});
  const at::Tensor ids = at::arange(samples * 16).reshape({samples, 16}).remainder(256);
  auto& ledger = comm::RankContext::require().ledger;
  for (int step = 0; step < 2; ++step) {
    support::reset_peak(rank);
    ledger.clear();
    job(ids, ids).backward();
    account.pass = support::bytes_of(rank).peak - before - (c.accumulate > 1 ? 5 : 4) * account.own;
    account.gathered = ledger.bytes_of("all_gather", "fsdp");
    account.merged = ledger.bytes_of("reduce_scatter", "fsdp");
    optimizer.step();
    optimizer.zero_grad(/*set_to_none=*/false);
  }
  account.left = support::bytes_of(rank).live - before;
  return account;
}

// On pp=2 alone, or with two ranks a stage, of which each has as many samples as the one had.
std::vector<Account> accounts_of(const Case& c) {
  support::count_allocations();
  const auto mesh = Mesh::parse(c.mesh);
  std::vector<Account> accounts(static_cast<size_t>(mesh.size()));
  comm::run_ranks(
      mesh.size(),
      [&](int64_t rank) { accounts[static_cast<size_t>(rank)] = account_of_rank(mesh, rank, 4 * mesh.size() / 2, c); },
      {.intra_op_threads = 1});
  return accounts;
}

constexpr int64_t kSlack = 8192;  // bytes of scalars and the like

// By how much some rank holds more in a step than one of pp=2 does, one gathered group and one of gradients.
int64_t excess_of(const std::vector<Account>& accounts, const std::vector<Account>& of_stage) {
  int64_t excess = std::numeric_limits<int64_t>::min();
  for (size_t rank = 0; rank < accounts.size(); ++rank) {
    const Account& own = accounts[rank];
    excess = std::max(excess, own.pass - of_stage[rank / 2].pass - 2 * own.largest_group - kSlack);
  }
  return excess;
}

TEST(ShardedStages, ARankHoldsItsShareOfItsStage) {
  for (const char* schedule : {"", "1f1b", "interleaved"}) {
    SCOPED_TRACE(schedule);
    const int64_t accumulate = *schedule ? 4 : 1;
    const auto stages = accounts_of({"pp=2", false, accumulate, Sharding::kParameters, schedule});
    const auto parts = accounts_of({"pp=2,fsdp=2", false, accumulate, Sharding::kParameters, schedule});
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      EXPECT_LE(std::abs(2 * parts[rank].own - stages[rank / 2].own), 6 * 2 * 4 * 176);  // a row of each group
      EXPECT_LE(std::abs(parts[rank].left - 4 * parts[rank].own), kSlack);
    }
    EXPECT_LE(excess_of(parts, stages), 0);
    // The control: what is gathered stays.
    const auto kept = accounts_of({"pp=2,fsdp=2", false, accumulate, Sharding::kGradients, schedule});
    EXPECT_GT(excess_of(kept, stages), 0);
  }
}

// Each stage gathers what it has, forward and backward, and the other stage does not know of it.
TEST(ShardedStages, BytesAreClosedForms) {
  const int64_t table = 256 * 64 * 4 / 2, layer = (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) * 4 / 2, norm = 64 * 4 / 2;
  const int64_t first = table + 2 * layer, last = 2 * layer + norm + table;
  const auto check = [&](const Case& c, int64_t first_gathered, int64_t last_gathered, int64_t merges) {
    SCOPED_TRACE(c.str());
    const auto accounts = accounts_of(c);
    for (size_t rank = 0; rank < accounts.size(); ++rank) {
      const bool is_first = rank / 2 == 0;
      EXPECT_EQ(accounts[rank].gathered, is_first ? first_gathered : last_gathered) << rank;
      EXPECT_EQ(accounts[rank].merged, merges * (is_first ? first : last)) << rank;
    }
  };
  // The last of a stage stays for backward, and the gradient of the first table does not read it.
  const int64_t again = first - table - layer, again_last = last - table;
  check({"pp=2,fsdp=2"}, first + again, last + again_last, 1);
  check({"pp=2,fsdp=2", false, 2}, 2 * (first + again), 2 * (last + again_last), 2);
  check({"pp=2,fsdp=2", false, 2, Sharding::kGradients}, first, last, 2);
  check({"pp=2,fsdp=2", false, 4, Sharding::kGradients, "1f1b"}, first, last, 4);
  // Groups that two axes cut: each near rank gathers its half from the copy that stays.
  const auto near = accounts_of({"pp=2,dp_shard=2,fsdp=2", false, 1, Sharding::kSecondary});
  for (size_t rank = 0; rank < near.size(); ++rank) {
    EXPECT_EQ(near[rank].gathered, rank / 4 == 0 ? first + again : last + again_last) << rank;
  }
}

}  // namespace
}  // namespace tessera::ranks::sharded_stages_test
