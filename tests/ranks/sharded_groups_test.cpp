// Collectives that gather parameters and merge their gradients: so many as there are groups, not parameters.
#include <map>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallel/forward_pass.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"

namespace tessera::ranks::sharded_groups_test {
namespace {

using plan::Sharding;
using Counts = std::map<std::string, int64_t>;  // by collective and axes

models::LlamaConfig llama() {
  models::LlamaConfig config;
  config.vocab_size = 101, config.dim = 48, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.hidden = 80, config.max_seq = 16, config.tie_embeddings = true;
  return config;
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 101, config.dim = 48, config.layers = 2, config.heads = 4, config.max_seq = 16;
  return config;
}

struct Program {
  std::string mesh = "1";
  Sharding sharding = Sharding::kParameters;
  bool sequence_parallel = false;
  bool is_exact = false;
  bool is_grouped = true;
  bool has_blocks = false;  // the rows of fused Q, K and V are cut in three blocks
  int64_t passes = 1;
};

Program without_groups(Program program) {
  program.is_grouped = false;
  return program;
}

struct Outcome {
  Counts pass, update;  // calls over the axes that cut or repeat parameters, of all passes and after them
  Counts bytes;         // of both
  int64_t all_bytes = 0, parameters = 0;
  std::vector<at::Tensor> values;  // after the step
};

bool same_bits(const Outcome& a, const Outcome& b) {
  return std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

void add_to(Counts& calls, Counts& bytes, trace::Ledger& ledger) {
  for (const trace::LedgerEntry& entry : ledger.entries()) {
    if (entry.axis != "tp" && entry.calls > 0) {
      calls[entry.collective + " " + entry.axis] += entry.calls;
      bytes[entry.collective + " " + entry.axis] += entry.bytes;
    }
  }
  ledger.clear();
}

void cut_in_blocks(plan::ParameterPlan& entry) {
  for (auto* placements : {&entry.storage, &*entry.compute, &*entry.gradient}) {
    for (layout::Placement& placement : *placements) {
      if (placement.is_shard(0)) {
        placement = layout::InterleavedShard(0, 3, {.order = placement.order});
      }
    }
  }
}

// One step of a loop of the program's own, on rank 0.
template <typename Model, typename Config>
Outcome step_of(const Program& program, const Config& config) {
  const Mesh mesh = Mesh::parse(program.mesh);
  Outcome outcome;
  run_on(mesh, [&](int64_t rank) {
    dtensor::manual_seed(7);
    if (program.is_exact) {
      dtensor::set_numerics(dtensor::Numerics::kExact, {.batch = 8, .sequence = 2, .feature = 4});
    }
    auto model = parallel::deferred([&] { return Model(config); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    auto plan = parallel::generate_plan(*model, {.mesh = mesh,
                                                 .sequence_parallel = program.sequence_parallel,
                                                 .sharding = program.sharding,
                                                 .heads = config.heads,
                                                 .kv_heads = kv_heads_of(config)});
    for (plan::ParameterPlan& entry : plan.parameters) {
      entry.group = program.is_grouped ? entry.group : "";
      if (program.has_blocks && entry.pattern.find("c_attn") != std::string::npos) {
        cut_in_blocks(entry);
      }
    }
    parallel::place(*model, plan, &optimizer);
    parallel::ForwardPasses passes(plan, program.passes);
    const auto tokens = at::arange(8 * 9).reshape({8, 9});
    trace::Ledger& ledger = comm::RankContext::require().ledger;
    Outcome own;
    for (const at::Tensor& micro : tokens.chunk(program.passes)) {
      const auto batch =
          passes.begin({{"tokens", micro.slice(1, 0, 8).contiguous()}, {"targets", micro.slice(1, 1, 9).contiguous()}});
      ledger.clear();
      const at::Tensor loss = model->loss(batch[0], batch[1]);
      passes.end();
      (program.passes > 1 ? loss / program.passes : loss).backward();
      add_to(own.pass, own.bytes, ledger);
    }
    optimizer.step();
    add_to(own.update, own.bytes, ledger);
    own.all_bytes = 4 * models::parameter_count(*model);
    for (const at::Tensor& parameter : model->parameters()) {
      own.values.push_back(dtensor::full_tensor(parameter.detach()).clone());
      ++own.parameters;
    }
    if (rank == 0) {
      outcome = own;
    }
  });
  return outcome;
}

// As many as groups (the table, two layers, the last norm), each with the bytes of its parameters: forward reads the
// table at both ends of the model, and backward gathers three again. Alone: each parameter twice, each use merged.
TEST(ShardedGroups, OfTwoAxesAreGatheredAndMergedAtOnce) {
  const Program program = {.mesh = "dp_shard=2,fsdp=2"};
  const Outcome grouped = step_of<models::Llama>(program, llama());
  EXPECT_EQ(grouped.pass.at("all_gather dp_shard,fsdp"), 5 + 3);
  EXPECT_EQ(grouped.bytes.at("all_gather dp_shard,fsdp"), 2 * grouped.all_bytes * 3 / 4);
  EXPECT_EQ(grouped.pass.at("reduce_scatter dp_shard,fsdp"), 4);
  EXPECT_EQ(grouped.bytes.at("reduce_scatter dp_shard,fsdp"), grouped.all_bytes * 3 / 4);
  EXPECT_EQ(grouped.update, Counts());
  const Outcome alone = step_of<models::Llama>(without_groups(program), llama());
  EXPECT_EQ(alone.pass.at("all_gather dp_shard,fsdp"), 2 * alone.parameters);
  EXPECT_EQ(alone.bytes.at("all_gather dp_shard,fsdp"), grouped.bytes.at("all_gather dp_shard,fsdp"));
  EXPECT_EQ(alone.pass.at("reduce_scatter dp_shard,fsdp"), alone.parameters + 1);
}

TEST(ShardedGroups, KeepTheirNearCopiesForTheStep) {
  const Outcome sent =
      step_of<models::Llama>({.mesh = "dp_shard=2,fsdp=2", .sharding = Sharding::kSecondary, .passes = 2}, llama());
  EXPECT_EQ(sent.pass.at("all_gather dp_shard"), 4);
  EXPECT_EQ(sent.bytes.at("all_gather dp_shard"), sent.all_bytes / 4);
  EXPECT_EQ(sent.pass.at("all_gather fsdp"), 2 * (5 + 3));
  EXPECT_EQ(sent.bytes.at("all_gather fsdp"), 2 * 2 * sent.all_bytes / 2);
  EXPECT_EQ(sent.pass.at("reduce_scatter dp_shard,fsdp"), 2 * 4);
}

TEST(ShardedGroups, OfTensorParallelModelsAreAsMany) {
  for (const bool sequence_parallel : {false, true}) {
    const Outcome sent =
        step_of<models::Llama>({.mesh = "fsdp=2,tp=2", .sequence_parallel = sequence_parallel}, llama());
    EXPECT_EQ(sent.pass.at("all_gather fsdp"), 5 + 3);
    EXPECT_EQ(sent.pass.at("reduce_scatter fsdp"), 4);
  }
}

// A layer that has such a member is one group still.
TEST(ShardedGroups, WithRowsInBlocksAreAsMany) {
  const Program program = {.mesh = "fsdp=2,tp=2", .has_blocks = true};
  const Outcome sent = step_of<models::Gpt>(program, gpt());
  EXPECT_EQ(sent.pass.at("all_gather fsdp"), 5 + 4);
  EXPECT_EQ(sent.pass.at("reduce_scatter fsdp"), 5);
  EXPECT_GT(step_of<models::Gpt>(without_groups(program), gpt()).pass.at("all_gather fsdp"), 2 * (5 + 4));
}

// In `exact` of each gradient's samples: those of the norms, which sequence parallelism cuts, are merged apart.
TEST(ShardedGroups, InExactAreMergedAtOnce) {
  const Program program = {.mesh = "dp_shard=2,fsdp=2", .is_exact = true};
  EXPECT_EQ(step_of<models::Llama>(program, llama()).pass.at("exact_merge dp_shard,fsdp"), 4);
  const Outcome alone = step_of<models::Llama>(without_groups(program), llama());
  EXPECT_EQ(alone.pass.at("exact_merge dp_shard,fsdp"), alone.parameters);
}

// ... and between passes: what hybrid sharding merges once a step, and in `exact` what `state` does.
TEST(ShardedGroups, GradientsOfALoopAreMergedTogether) {
  const Outcome hybrid = step_of<models::Llama>({.mesh = "dp=2,fsdp=2", .passes = 2}, llama());
  EXPECT_EQ(hybrid.pass.at("reduce_scatter fsdp"), 2 * 4);
  EXPECT_EQ(hybrid.update, (Counts{{"all_reduce dp", 1}}));
  EXPECT_EQ(hybrid.bytes.at("all_reduce dp"), hybrid.all_bytes / 2);
  const Outcome exact =
      step_of<models::Llama>({.mesh = "dp=2", .sharding = Sharding::kState, .is_exact = true, .passes = 2}, llama());
  EXPECT_EQ(exact.update, (Counts{{"all_gather dp", 1}, {"exact_merge dp", 2}}));
}

// ... in `fast` too, where gradients of matrices are transposed views. These are 168 KB, and 128 KiB go together;
// passes add up their losses alone.
TEST(ShardedGroups, GradientsOfMatricesAreSumsUntilTheStep) {
  const Outcome repeated = step_of<models::Llama>({.mesh = "dp=2", .passes = 2}, llama());
  EXPECT_EQ(repeated.pass, (Counts{{"all_reduce dp", 2}}));
  EXPECT_EQ(repeated.update, (Counts{{"all_reduce dp", 2}}));
  EXPECT_EQ(repeated.bytes.at("all_reduce dp"), repeated.all_bytes + 2 * 4);
  const Outcome cut = step_of<models::Llama>({.mesh = "fsdp=2", .sharding = Sharding::kState, .passes = 2}, llama());
  EXPECT_EQ(cut.pass, (Counts{{"all_gather fsdp", 4}, {"all_reduce fsdp", 2}}));
  EXPECT_EQ(cut.update, (Counts{{"reduce_scatter fsdp", 2}}));
  EXPECT_EQ(cut.bytes.at("reduce_scatter fsdp"), cut.all_bytes / 2);
}

template <typename Model, typename Config>
void expect_bits_of_one_rank(const Config& config) {
  const Outcome one = step_of<Model>({.is_exact = true}, config);
  for (const Program& program : std::vector<Program>{{.mesh = "dp_shard=2,fsdp=2"},
                                                     {.mesh = "dp_shard=2,fsdp=2", .sharding = Sharding::kSecondary},
                                                     {.mesh = "fsdp=2,tp=2", .sequence_parallel = true},
                                                     {.mesh = "fsdp=2,tp=2", .has_blocks = true},
                                                     {.mesh = "dp=2,fsdp=2", .passes = 2},
                                                     {.mesh = "fsdp=2", .sharding = Sharding::kState, .passes = 2}}) {
    SCOPED_TRACE(c10::str(program.mesh, ", ", plan::name_of(program.sharding)));
    Program exact = program;
    exact.is_exact = true;
    EXPECT_TRUE(same_bits(step_of<Model>(exact, config), one));
    EXPECT_TRUE(same_bits(step_of<Model>(without_groups(exact), config), one));
  }
  EXPECT_FALSE(same_bits(step_of<Model>({.mesh = "dp_shard=2,fsdp=2"}, config), one)) << "the order does not show";
}

TEST(ShardedGroups, LlamaHasTheBitsOfOneRank) { expect_bits_of_one_rank<models::Llama>(llama()); }
TEST(ShardedGroups, GptHasTheBitsOfOneRank) { expect_bits_of_one_rank<models::Gpt>(gpt()); }

}  // namespace
}  // namespace tessera::ranks::sharded_groups_test
