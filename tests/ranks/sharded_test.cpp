// Fully sharded training: parameters, gradients and moments in parts, gathered where they are read. The bits of one
// rank in `exact`, the numbers of one device in `fast`; bytes as closed forms; what a rank holds.

#include <map>
#include <typeinfo>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::sharded_test {
namespace {

using plan::Sharding;

models::LlamaConfig llama(at::ScalarType dtype = at::kFloat) {
  models::LlamaConfig config;
  config.vocab_size = 101, config.dim = 48, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.hidden = 80, config.max_seq = 16, config.tie_embeddings = true, config.dtype = dtype;
  return config;
}

models::GptConfig gpt(at::ScalarType dtype = at::kFloat) {
  models::GptConfig config;
  config.vocab_size = 101, config.dim = 48, config.layers = 2, config.heads = 4, config.max_seq = 16;
  config.dropout = 0.1, config.dtype = dtype;
  return config;
}

const std::vector<Case> kCases = {{"fsdp=2"},
                                  {"fsdp=3"},
                                  {"fsdp=4", false, 2},
                                  {"fsdp=8"},
                                  {"dp=2,fsdp=2", false, 2},
                                  {"fsdp=2,tp=2"},
                                  {"fsdp=2,tp=2", true},
                                  {"dp=2,tp=2", true},
                                  {"dp_shard=2,fsdp=2"},
                                  {"fsdp=2", false, 4, Sharding::kState},
                                  {"fsdp=2,tp=2", false, 2, Sharding::kState},
                                  {"fsdp=3", false, 2, Sharding::kGradients},
                                  {"dp=2,fsdp=2", false, 1, Sharding::kGradients},
                                  {"dp_shard=2,fsdp=2", false, 2, Sharding::kSecondary}};

template <typename Model, typename Config>
void expect_bits_of_one_rank(const Config& config) {
  const Setting setting = {
      .batch = 32, .vocabulary = 101, .lattice = sums::Lattice{.batch = 32, .sequence = 4, .feature = 4}};
  const Curve one = train<Model>(setting, config, {});
  for (const Case& c : support::sampled(kCases, 4, typeid(Model).name())) {
    SCOPED_TRACE(c.str());
    try {
      EXPECT_EQ(difference(one, train<Model>(setting, config, c)), "");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Sharded, LlamaHasTheBitsOfOneRank) { expect_bits_of_one_rank<models::Llama>(llama()); }
TEST(Sharded, GptHasTheBitsOfOneRank) { expect_bits_of_one_rank<models::Gpt>(gpt()); }

TEST(Sharded, FastNumericsHaveTheNumbersOfOneDevice) {
  const Setting setting = {.batch = 7, .length = 12, .vocabulary = 101, .learning_rate = 1e-4};
  const Curve one = train<models::Llama>(setting, llama(at::kDouble), {});
  for (const Case& c : support::sampled(kCases, 4)) {
    SCOPED_TRACE(c.str());
    const Distance apart = distance(train<models::Llama>(setting, llama(at::kDouble), c), one);
    EXPECT_LE(std::max({apart.losses, apart.norms, apart.parameters}), 1e-12) << str(apart);
  }
}

// Two products without biases; the rows of one do not divide.
struct ProductsImpl : torch::nn::Module {
  static constexpr int64_t kIn = 64, kHidden = 128, kOut = 30;
  ProductsImpl()
      : up(register_module("up", torch::nn::Linear(torch::nn::LinearOptions(kIn, kHidden).bias(false)))),
        down(register_module("down", torch::nn::Linear(torch::nn::LinearOptions(kHidden, kOut).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Products);

// What a step of `accumulate` micro-batches sends on rank 0.
trace::Ledger ledger_of_step(const std::string& mesh_text, Sharding sharding, int64_t accumulate) {
  trace::Ledger ledger;
  const auto mesh = Mesh::parse(mesh_text);
  run_on(mesh, [&](int64_t rank) {
    auto model = parallel::deferred([] { return Products(); });
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .sharding = sharding});
    parallel::place(*model, plan);
    parallel::Job job(
        model.ptr(), plan,
        [model](const std::vector<at::Tensor>& batch) mutable { return torch::mse_loss(model(batch[0]), batch[1]); },
        {.accumulate = accumulate});
    comm::RankContext::require().ledger.clear();
    job(waves({12, Products::Impl::kIn}).to(at::kFloat), waves({12, Products::Impl::kOut}).to(at::kFloat)).backward();
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_EQ(spec_of(parameter.grad())->placements, spec_of(parameter)->placements);
    }
    if (rank == 0) {
      ledger = comm::RankContext::require().ledger;
    }
  });
  return ledger;
}

// What a rank sends on average of a float32 [rows, columns] that is gathered from parts, or merged into them.
int64_t bytes_of_parts(int64_t rows, int64_t columns, int64_t ranks) {
  return rows * columns * 4 * (ranks - 1) / ranks;
}

TEST(Sharded, BytesAreClosedForms) {
  constexpr int64_t kIn = Products::Impl::kIn, kHidden = Products::Impl::kHidden, kOut = Products::Impl::kOut;
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t passes : {1, 2}) {
      const std::string mesh = c10::str("fsdp=", ranks);
      const int64_t both = bytes_of_parts(kHidden, kIn, ranks) + bytes_of_parts(kOut, kHidden, ranks);
      SCOPED_TRACE(c10::str(mesh, ", ", passes, " passes"));
      // The last one stays for the backward pass; the gradient of the inputs is not asked for, so the first is not
      // gathered again.
      for (const Sharding sharding : {Sharding::kParameters, Sharding::kGradients, Sharding::kState}) {
        const trace::Ledger ledger = ledger_of_step(mesh, sharding, passes);
        const int64_t gathered = sharding == Sharding::kParameters ? passes : 1;
        const int64_t merges = sharding == Sharding::kState ? 1 : passes;
        EXPECT_EQ(ledger.bytes_of("all_gather", "fsdp"), gathered * both) << ledger.json();
        EXPECT_EQ(ledger.bytes_of("reduce_scatter", "fsdp"), merges * both) << ledger.json();
      }
    }
  }
}

// A copy that the near ranks share is gathered once a step from the others, and from the near ones at each use.
TEST(Sharded, NearRanksShareACopy) {
  constexpr int64_t kIn = Products::Impl::kIn, kHidden = Products::Impl::kHidden, kOut = Products::Impl::kOut;
  const int64_t all = (kHidden * kIn + kOut * kHidden) * 4;
  for (const int64_t passes : {1, 2}) {
    const trace::Ledger ledger = ledger_of_step("dp_shard=2,fsdp=2", Sharding::kSecondary, passes);
    EXPECT_EQ(ledger.bytes_of("all_gather", "dp_shard"), all / 4) << ledger.json();
    EXPECT_EQ(ledger.bytes_of("all_gather", "fsdp"), passes * all / 2) << ledger.json();
    EXPECT_EQ(ledger.bytes_of("reduce_scatter", "dp_shard,fsdp"), passes * all * 3 / 4) << ledger.json();
  }
}

// One collective a group, not a parameter: the table, each layer, the last norm; what backward gathers again.
TEST(Sharded, OneCollectiveGathersAGroupAndOneMergesItsGradients) {
  for (const Sharding sharding : {Sharding::kParameters, Sharding::kGradients}) {
    const auto mesh = Mesh::parse("fsdp=2");
    run_on(mesh, [&](int64_t) {
      auto model = parallel::deferred([] { return models::Llama(llama()); });
      const auto plan =
          parallel::generate_plan(*model, {.mesh = mesh, .sharding = sharding, .heads = 4, .kv_heads = 2});
      parallel::place(*model, plan);
      parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
        return model->loss(batch[0], batch[1]);
      });
      const auto tokens = at::arange(8 * 9).reshape({8, 9});
      comm::RankContext::require().ledger.clear();
      job(tokens.slice(1, 0, 8).contiguous(), tokens.slice(1, 1, 9).contiguous()).backward();
      const trace::Ledger& ledger = comm::RankContext::require().ledger;
      const int64_t bytes = 4 * models::parameter_count(*model) / 2;
      EXPECT_EQ(ledger.calls_of("reduce_scatter", "fsdp"), 4) << ledger.json();
      EXPECT_EQ(ledger.bytes_of("reduce_scatter", "fsdp"), bytes) << ledger.json();
      if (sharding == Sharding::kGradients) {
        EXPECT_EQ(ledger.calls_of("all_gather", "fsdp"), 4) << ledger.json();
        EXPECT_EQ(ledger.bytes_of("all_gather", "fsdp"), bytes) << ledger.json();
        return;
      }
      // The head is the table: it is read at both ends of the model, so forward gathers it twice, and backward has it
      // at first; then the last norm, and both layers.
      EXPECT_EQ(ledger.calls_of("all_gather", "fsdp"), 5 + 3) << ledger.json();
      EXPECT_EQ(ledger.bytes_of("all_gather", "fsdp"), 2 * bytes) << ledger.json();
    });
  }
}

// What a Llama of 20 parameters sends in one step of two micro-batches, by the operator that asked for it.
std::map<std::string, int64_t> merges_of_step(const std::string& mesh_text, Sharding sharding, bool is_exact,
                                              bool sequence_parallel = false) {
  const auto mesh = Mesh::parse(mesh_text);
  std::map<std::string, int64_t> calls;
  run_on(mesh, [&](int64_t rank) {
    if (is_exact) {
      dtensor::set_numerics(dtensor::Numerics::kExact, {.batch = 8, .sequence = 2, .feature = 2});
    }
    auto model = parallel::deferred([] { return models::Llama(llama()); });
    const auto plan = parallel::generate_plan(
        *model,
        {.mesh = mesh, .sequence_parallel = sequence_parallel, .sharding = sharding, .heads = 4, .kv_heads = 2});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.accumulate = 2});
    const auto tokens = at::arange(8 * 9).reshape({8, 9});
    comm::RankContext::require().ledger.clear();
    job(tokens.slice(1, 0, 8).contiguous(), tokens.slice(1, 1, 9).contiguous()).backward();
    for (const trace::LedgerEntry& entry : comm::RankContext::require().ledger.entries()) {
      if (rank == 0 && entry.op == "gradients") {
        calls[entry.collective + " " + entry.axis] += entry.calls;
      }
    }
  });
  return calls;
}

// However many parameters there are: of a step one collective an axis merges 128 KiB of small ones, and these are 168
// KB; or one a group and pass.
TEST(Sharded, FewCollectivesMergeTheGradientsOfAStep) {
  using Calls = std::map<std::string, int64_t>;
  EXPECT_EQ(merges_of_step("dp=2", Sharding::kState, false), (Calls{{"all_reduce dp", 2}}));
  EXPECT_EQ(merges_of_step("fsdp=2", Sharding::kState, false), (Calls{{"reduce_scatter fsdp", 2}}));
  EXPECT_EQ(merges_of_step("dp=2,fsdp=2", Sharding::kState, false),
            (Calls{{"reduce_scatter fsdp", 2}, {"all_reduce dp", 2}}));
  EXPECT_EQ(merges_of_step("dp=2,fsdp=2", Sharding::kGradients, false),
            (Calls{{"reduce_scatter fsdp", 2 * 4}, {"all_reduce dp", 1}}));
  EXPECT_EQ(merges_of_step("dp=2", Sharding::kState, true), (Calls{{"all_gather dp", 1}, {"exact_merge dp", 2}}));
  EXPECT_EQ(merges_of_step("fsdp=2", Sharding::kGradients, true),
            (Calls{{"all_gather fsdp", 2 * 4}, {"exact_merge fsdp", 2 * 4}}));
}

// The norms of a sequence-parallel Llama hold sums over both axes.
TEST(Sharded, SumsOverTwoAxesAreMergedAtOnce) {
  using Calls = std::map<std::string, int64_t>;
  EXPECT_EQ(merges_of_step("dp=2,tp=2", Sharding::kState, false, true),
            (Calls{{"all_reduce dp,tp", 1}, {"all_reduce dp", 1}}));
  EXPECT_EQ(merges_of_step("dp=2,tp=2", Sharding::kState, true, true),
            (Calls{{"all_gather dp,tp", 1}, {"exact_merge dp,tp", 1}, {"all_gather dp", 1}, {"exact_merge dp", 1}}));
  EXPECT_EQ(merges_of_step("dp_shard=2,fsdp=2", Sharding::kState, false), (Calls{{"reduce_scatter dp_shard,fsdp", 2}}));
}

// What rank 0 holds: parameters, gradients and moments between steps, and the most beside them in a step.
struct Held {
  int64_t kept = 0, largest_block = 0;
};

Held held_by(const std::string& mesh_text, Sharding sharding) {
  Held held;
  const auto mesh = Mesh::parse(mesh_text);
  run_on(mesh, [&](int64_t rank) {
    const int64_t before = support::bytes_of(rank).live;
    support::reset_peak(rank);
    auto model = parallel::deferred([] { return models::Llama(llama()); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .sharding = sharding, .heads = 4, .kv_heads = 2});
    parallel::place(*model, plan, &optimizer);
    const int64_t largest = support::bytes_of(rank).largest;
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
      return model->loss(batch[0], batch[1]);
    });
    const auto tokens = at::arange(8 * 9).reshape({8, 9});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      job(tokens.slice(1, 0, 8).contiguous(), tokens.slice(1, 1, 9).contiguous()).backward();
      optimizer.step();
    }
    if (rank == 0) {
      held = {support::bytes_of(rank).live - before, largest};
    }
  });
  return held;
}

TEST(Sharded, ARankKeepsItsShare) {
  support::count_allocations();
  const int64_t whole = 4 * 4 * models::parameter_count(*parallel::deferred([] { return models::Llama(llama()); }));
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const Sharding sharding : {Sharding::kParameters, Sharding::kGradients, Sharding::kState}) {
      const Held held = held_by(c10::str("fsdp=", ranks), sharding);
      const int64_t rows = 4 * 4 * (8 * 48 * 9 + 5 * 48);  // one row more of each parameter and of what lies beside it
      std::cout << ranks << " ranks, " << plan::name_of(sharding) << ": " << held.kept << " of " << whole << " bytes\n";
      EXPECT_LE(held.kept, whole / ranks + rows);
      EXPECT_GE(held.kept, whole / ranks);
    }
  }
}

}  // namespace
}  // namespace tessera::ranks::sharded_test
