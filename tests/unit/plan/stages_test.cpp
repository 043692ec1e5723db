// How the parts of a model are shared by the stages of a pipeline.
#include <algorithm>
#include <array>
#include <map>
#include <random>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/plan/plan_model.h"
#include "tessera/plan/stages.h"

namespace tessera::plan::stages_test {
namespace {

struct Balance {
  double most = 0, squares = 0;
  auto operator<=>(const Balance&) const = default;
};

Balance balance_of(const std::vector<double>& costs, const std::vector<int64_t>& stages) {
  std::map<int64_t, double> sums;
  for (size_t i = 0; i < costs.size(); ++i) {
    sums[stages[i]] += costs[i];
  }
  Balance balance;
  for (const auto& [stage, cost] : sums) {
    balance.most = std::max(balance.most, cost);
    balance.squares += cost * cost;
  }
  return balance;
}

// Every way to cut `parts` into `stages` runs that are not empty.
void for_every_cut(size_t parts, int64_t stages, std::vector<int64_t>& cut,
                   const std::function<void(const std::vector<int64_t>&)>& visit) {
  if (cut.size() == parts) {
    return cut.back() == stages - 1 ? visit(cut) : void();
  }
  for (int64_t step = 0; step <= (cut.empty() ? 0 : 1); ++step) {
    cut.push_back(cut.empty() ? 0 : cut.back() + step);
    for_every_cut(parts, stages, cut, visit);
    cut.pop_back();
  }
}

TEST(BalancedStages, AreTheBestOfAll) {
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) {
      cost = static_cast<double>(random() % 20);
    }
    const int64_t stages = 1 + static_cast<int64_t>(random() % costs.size());
    std::vector<int64_t> cut;
    Balance best{1e9, 1e9};
    for_every_cut(costs.size(), stages, cut,
                  [&](const std::vector<int64_t>& each) { best = std::min(best, balance_of(costs, each)); });
    const auto found = balanced_stages(costs, stages);
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
    EXPECT_EQ(found.back(), stages - 1);
    const Balance balance = balance_of(costs, found);
    EXPECT_EQ(balance.most, best.most);
    EXPECT_EQ(balance.squares, best.squares);
  }
}

TEST(BalancedStages, FewerPartsThanStagesLeaveTheLastEmpty) {
  EXPECT_EQ(balanced_stages({1, 1}, 4), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(balanced_stages({}, 2), std::vector<int64_t>{});
}

models::LlamaConfig llama(bool is_tied) {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 4, config.heads = 4, config.kv_heads = 4, config.hidden = 48,
  config.max_seq = 16, config.tie_embeddings = is_tied;
  return config;
}

TEST(ModelParts, StandInTheOrderInWhichTheyRun) {
  const auto parts = parts_of(describe(*models::Llama(llama(false))));
  EXPECT_EQ(base::join(parts, " ", [](std::ostream& out, const ModelPart& part) { out << part.name; }),
            "model.embed_tokens model.layers.0 model.layers.1 model.layers.2 model.layers.3 model.norm lm_head");
  EXPECT_EQ(parts[0].elements, 64 * 32);
  EXPECT_EQ(parts[0].cost, 32);
  EXPECT_EQ(parts[1].elements, 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32);
  EXPECT_EQ(parts[1].cost, parts[1].elements);
  EXPECT_EQ(parts[1].width, 32);
  EXPECT_EQ(parts[6].cost, 64 * 32);
}

std::string storage(const Plan& plan, const char* name) { return layout::str(plan.mesh, plan.find(name)->storage); }

TEST(PipelineStyle, PutsEachParameterOnAStage) {
  const auto plan = plan_model(describe(*models::Llama(llama(false))),
                               {.mesh = layout::Mesh::parse("pp=2,tp=2"), .heads = 4, .kv_heads = 4});
  EXPECT_EQ(storage(plan, "model.embed_tokens.weight"), "{pp: On(0), tp: S(0)}");
  EXPECT_EQ(storage(plan, "model.layers.1.mlp.down_proj.weight"), "{pp: On(0), tp: S(1)}");
  EXPECT_EQ(storage(plan, "model.layers.2.input_layernorm.weight"), "{pp: On(1), tp: R}");
  EXPECT_EQ(storage(plan, "lm_head.weight"), "{pp: On(1), tp: S(0)}");
  EXPECT_FALSE(plan.find("lm_head.weight")->compute);
  ASSERT_GE(plan.notes.size(), 2u);
  EXPECT_NE(std::find(plan.notes.begin(), plan.notes.end(),
                      "stage 0: model.embed_tokens to model.layers.1, 19584 parameters, 47% of the cost"),
            plan.notes.end())
      << base::join(plan.notes, "\n");
  EXPECT_NE(std::find(plan.notes.begin(), plan.notes.end(),
                      "stage 1: model.layers.2 to lm_head, 19616 parameters, 53% of the cost, gets 128 bytes for each "
                      "token from the stage before it"),
            plan.notes.end())
      << base::join(plan.notes, "\n");
  EXPECT_EQ(Plan::from_json(plan.json()), plan);
}

TEST(PipelineStyle, ATiedWeightIsFetchedWhereItIsReadLater) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16;
  // Its modules do not say that the head reads the table.
  const auto plan = plan_model(describe(*models::Gpt(config)), {.mesh = layout::Mesh::parse("pp=2,dp=2")});
  const ParameterPlan* entry = plan.find("transformer.wte.weight");
  EXPECT_EQ(layout::str(plan.mesh, entry->storage), "{pp: On(0), dp: R}");
  ASSERT_TRUE(entry->compute && entry->gradient);
  EXPECT_EQ(layout::str(plan.mesh, *entry->compute), "{pp: R, dp: R}");
  EXPECT_EQ(layout::str(plan.mesh, *entry->gradient), "{pp: On(0), dp: P}");
  EXPECT_FALSE(plan.find("transformer.wpe.weight")->compute);
  config.tie_embeddings = false;
  const auto untied = plan_model(describe(*models::Gpt(config)), {.mesh = layout::Mesh::parse("pp=2")});
  EXPECT_FALSE(untied.find("transformer.wte.weight")->compute);
}

TEST(PipelineStyle, ATiedWeightOfTwoNamesIsOneParameter) {
  ModuleTree tree = describe(*models::Llama(llama(true))), head;
  head.name = "lm_head", head.kind = ModuleTree::Kind::kLinear;
  head.weight = tensors_of(tree).front().tensor;
  head.parameters = {{"weight", head.weight}};
  tree.children.push_back(head);
  const auto parts = parts_of(tree);
  EXPECT_EQ(parts.back().name, "lm_head");
  EXPECT_EQ(parts.back().tied, std::vector<std::string>{"model.embed_tokens.weight"});
  EXPECT_EQ(parts.back().elements, 0);
  EXPECT_EQ(parts.back().cost, 64 * 32);
  EXPECT_TRUE(plan_model(tree, {.mesh = layout::Mesh::parse("pp=2")}).find("model.embed_tokens.weight")->compute);
}

// Those of a group that are on one stage are cut together.
TEST(PipelineStyle, CutsWhatAStageHasOverFsdp) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16;
  config.tie_embeddings = false;
  const int64_t longest_row = 4 * config.dim;
  const auto mesh = layout::Mesh::parse("pp=2,fsdp=2");
  const models::Gpt gpt(config);
  const auto plan = plan_model(describe(*gpt), {.mesh = mesh, .groups = {{.pattern = "transformer"}}});
  std::map<std::pair<std::string, int64_t>, std::array<int64_t, 2>> elements;  // of each group and stage, by rank
  for (const NamedTensor& named : tensors_of(describe(*gpt))) {
    const ParameterPlan& entry = *plan.find(named.name);
    ASSERT_TRUE(entry.storage[0].is_on() && entry.compute) << named.name;
    EXPECT_EQ((*entry.compute)[0], entry.storage[0]);
    EXPECT_TRUE((*entry.compute)[1].is_replicate());
    const auto spec = layout::Spec::contiguous(mesh, entry.storage, named.tensor.sizes(), at::kFloat);
    auto& own = elements[{plan.group_of(named.name), entry.storage[0].stage}];
    for (int64_t rank = 0; rank < 2; ++rank) {
      own[static_cast<size_t>(rank)] += c10::multiply_integers(spec.local_sizes({entry.storage[0].coordinate(), rank}));
    }
  }
  EXPECT_EQ(elements.size(), 3);  // `transformer` on both stages, and the head
  for (const auto& [group, own] : elements) {
    EXPECT_LE(std::abs(own[0] - own[1]), longest_row) << group.first;
  }
  EXPECT_EQ(Plan::from_json(plan.json()), plan);
}

// ... in parts, which are put together there.
TEST(PipelineStyle, ATiedWeightThatFsdpCutsIsFetchedToo) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16;
  const auto plan = plan_model(describe(*models::Gpt(config)), {.mesh = layout::Mesh::parse("pp=2,fsdp=2")});
  const ParameterPlan* entry = plan.find("transformer.wte.weight");
  EXPECT_EQ(layout::str(plan.mesh, entry->storage), "{pp: On(0), fsdp: S(0)}");
  ASSERT_TRUE(entry->compute && entry->gradient);
  EXPECT_EQ(layout::str(plan.mesh, *entry->compute), "{pp: R, fsdp: R}");
  EXPECT_EQ(layout::str(plan.mesh, *entry->gradient), "{pp: On(0), fsdp: S(0)}");
  EXPECT_EQ(entry->group, "");
}

// The layers alone are balanced, and the vocabulary is everybody's.
TEST(PipelineStyle, CutsAVocabularyOverAllStages) {
  const auto plan = plan_model(describe(*models::Llama(llama(false))),
                               {.mesh = layout::Mesh::parse("pp=2,tp=2"), .schedule = "v-half", .vocabulary = 2});
  EXPECT_EQ(storage(plan, "model.embed_tokens.weight"), "{pp: S(0), tp: S(0)}");
  EXPECT_EQ(storage(plan, "lm_head.weight"), "{pp: S(0), tp: S(0)}");
  EXPECT_EQ(storage(plan, "model.norm.weight"), "{pp: On(0;3), tp: R}");
  EXPECT_EQ(plan.vocabulary, 2);
  for (const char* note : {"model.embed_tokens.weight, lm_head.weight: cut over the 2 ranks of pp",
                           "stage 0 (rank 0): model.layers.0, 8768 parameters, 25% of the cost"}) {
    EXPECT_NE(std::find(plan.notes.begin(), plan.notes.end(), note), plan.notes.end()) << base::join(plan.notes, "\n");
  }
  EXPECT_EQ(Plan::from_json(plan.json()), plan);

  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16;
  const auto tied = plan_model(describe(*models::Gpt(config)), {.mesh = layout::Mesh::parse("pp=2"), .vocabulary = 1});
  EXPECT_EQ(storage(tied, "transformer.wte.weight"), "{pp: S(0)}");
  EXPECT_FALSE(tied.find("transformer.wte.weight")->compute);
  EXPECT_EQ(storage(tied, "transformer.wpe.weight"), "{pp: On(0)}");
}

TEST(PipelineStyle, SaysWhichStagesAreEmpty) {
  ModuleTree tree;
  tree.kind = ModuleTree::Kind::kLinear;
  tree.weight = at::empty({4, 4});
  tree.parameters = {{"weight", tree.weight}};
  const auto plan = plan_model(tree, {.mesh = layout::Mesh::parse("pp=3")});
  EXPECT_NE(std::find(plan.notes.begin(), plan.notes.end(), "stage 2 is empty: the model has 1 parts for 3 stages"),
            plan.notes.end());
}

}  // namespace
}  // namespace tessera::plan::stages_test
