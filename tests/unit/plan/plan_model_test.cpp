#include "tessera/plan/plan_model.h"

#include <torch/torch.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/plan/planned_modules.h"

namespace tessera::plan::plan_model_test {
namespace {

Plan plan_model(const torch::nn::Module& model, const PlanOptions& options) {
  return plan_model(describe(model), options);
}

PlanOptions on(const char* mesh, int64_t heads = 0, int64_t kv_heads = 0) {
  return {.mesh = layout::Mesh::parse(mesh), .heads = heads, .kv_heads = kv_heads};
}

// What the plan says about a parameter, on the tp axis; `-` where it has no entry.
std::string on_tp(const Plan& plan, const std::string& name) {
  const auto* entry = plan.find(name);
  return entry == nullptr ? "-" : entry->storage.at(static_cast<size_t>(plan.mesh.axis_index("tp"))).str();
}

std::map<std::string, std::vector<int64_t>> sizes_of(const torch::nn::Module& model) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const auto& parameter : model.named_parameters()) {
    sizes[parameter.key()] = parameter.value().sizes().vec();
  }
  return sizes;
}

bool has_note(const Plan& plan, const std::string& part) {
  return std::any_of(plan.notes.begin(), plan.notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

// MNIST as everybody writes it.
struct HandWrittenImpl : torch::nn::Module {
  HandWrittenImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(784, 96));
    fc2 = register_module("fc2", torch::nn::Linear(96, 64));
    fc3 = register_module("fc3", torch::nn::Linear(64, 10));
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
};

// Kinds of its own: a matrix that is in no Linear, and one weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    table = register_module("table", torch::nn::Embedding(50, 16));
    mix = register_parameter("mix", torch::zeros({16, 16}));
    scale = register_parameter("scale", torch::zeros({16}));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(16, 50).bias(false)));
    head->weight = table->weight;
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor mix, scale;
};

TEST(PlanModel, Llama) {
  models::Llama model(models::LlamaConfig{.dim = 64, .layers = 3, .heads = 8, .kv_heads = 4, .hidden = 96});
  const auto plan = plan_model(*model, on("dp=2,tp=2", 8, 4));
  EXPECT_NO_THROW(plan.verify(sizes_of(*model)));
  EXPECT_EQ(plan.batch_axes, std::vector<std::string>{"dp"});
  EXPECT_TRUE(plan.notes.empty()) << base::join(plan.notes, "\n");
  const std::vector<std::pair<std::string, std::string>> table = {
      {"model.embed_tokens.weight", "S(0)"},
      {"lm_head.weight", "S(0)"},
      {"model.norm.weight", "-"},
      {"model.layers.2.input_layernorm.weight", "-"},
      {"model.layers.0.self_attn.q_proj.weight", "S(0;16)"},
      {"model.layers.1.self_attn.k_proj.weight", "S(0;8)"},
      {"model.layers.2.self_attn.v_proj.weight", "S(0;8)"},
      {"model.layers.2.self_attn.o_proj.weight", "S(1;16)"},
      {"model.layers.0.mlp.gate_proj.weight", "S(0)"},
      {"model.layers.0.mlp.up_proj.weight", "S(0)"},
      {"model.layers.0.mlp.down_proj.weight", "S(1)"},
  };
  for (const auto& [name, placement] : table) {
    EXPECT_EQ(on_tp(plan, name), placement) << name;
  }
  // One line for each kind of parameter, however many layers.
  EXPECT_EQ(plan.parameters.size(), 9u) << plan.json();
}

TEST(PlanModel, NamesWhatIsRecomputed) {
  models::Llama model(models::LlamaConfig{.dim = 64, .layers = 3, .heads = 8, .kv_heads = 4, .hidden = 96});
  auto options = on("dp=2", 8, 4);
  options.recompute = {"model.layers.*", "lm_head"};
  const auto plan = plan_model(*model, options);
  EXPECT_EQ(recomputed_modules(plan, describe(*model)),
            (std::vector<std::string>{"model.layers.0", "model.layers.1", "model.layers.2", "lm_head"}));
  const std::map<std::string, std::string> refused = {
      {"layers.*", "such as model.layers.*"}, {"mlp", "such as model.layers.*.mlp"}, {"blocks", "such as model, "}};
  for (const auto& [pattern, accepted] : refused) {
    options.recompute = {pattern};
    try {
      plan_model(*model, options);
      ADD_FAILURE() << pattern;
    } catch (const PlanError& error) {
      const auto message = base::message_of(error);
      EXPECT_NE(message.find("recompute \"" + pattern + "\" matches no module"), std::string::npos) << message;
      EXPECT_NE(message.find(accepted), std::string::npos) << message;
    }
  }
}

// Whole layers, and what is in them; the root and the list of layers are on both stages.
TEST(PlanModel, NamesWhatOtherStagesGoPast) {
  models::Llama model(models::LlamaConfig{.dim = 64, .layers = 2, .heads = 8, .kv_heads = 4, .hidden = 96});
  auto options = on("pp=2", 8, 4);
  EXPECT_TRUE(passable_modules(plan_model(*model, options), describe(*model)).empty());  // it has no schedule
  options.schedule = "1f1b";
  auto plan = plan_model(*model, options);
  const auto found = passable_modules(plan, describe(*model));
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  EXPECT_TRUE(has(found, "model.layers.0"));
  EXPECT_TRUE(has(found, "model.layers.1.mlp"));
  EXPECT_TRUE(has(found, "lm_head"));
  EXPECT_FALSE(has(found, "model"));
  EXPECT_FALSE(has(found, "model.layers"));
  plan.always_walked = {"model.layers.1"};
  const auto left = passable_modules(plan, describe(*model));
  EXPECT_TRUE(has(left, "model.layers.0.mlp"));
  EXPECT_FALSE(has(left, "model.layers.1"));
  EXPECT_FALSE(has(left, "model.layers.1.mlp"));
  plan.always_walked = {"layers.*"};
  EXPECT_THROW(passable_modules(plan, describe(*model)), PlanError);
}

TEST(PlanModel, Gpt) {
  models::Gpt model(models::GptConfig{.dim = 64, .layers = 2, .heads = 8});
  const auto plan = plan_model(*model, on("dp=2,tp=2", 8, 8));
  EXPECT_NO_THROW(plan.verify(sizes_of(*model)));
  const std::vector<std::pair<std::string, std::string>> table = {
      {"transformer.wte.weight", "S(0)"},
      {"transformer.wpe.weight", "-"},
      {"transformer.h.0.attn.c_attn.weight", "S(0;24)"},
      {"transformer.h.0.attn.c_attn.bias", "S(0;24)"},
      {"transformer.h.1.attn.c_proj.weight", "S(1;8)"},
      {"transformer.h.1.attn.c_proj.bias", "-"},
      {"transformer.h.1.mlp.c_fc.weight", "S(0)"},
      {"transformer.h.1.mlp.c_fc.bias", "S(0)"},
      {"transformer.h.1.mlp.c_proj.weight", "S(1)"},
      {"transformer.h.1.mlp.c_proj.bias", "-"},
      {"transformer.h.1.ln_1.weight", "-"},
      {"transformer.ln_f.bias", "-"},
  };
  for (const auto& [name, placement] : table) {
    EXPECT_EQ(on_tp(plan, name), placement) << name;
  }
  EXPECT_TRUE(plan.notes.empty()) << base::join(plan.notes, "\n");
  EXPECT_TRUE(has_note(plan_model(*model, on("tp=2")), "looks like fused Q, K and V"));
}

ModuleTree product(const std::string& name, int64_t in, int64_t out, bool is_transposed = false) {
  ModuleTree tree;
  tree.name = name;
  tree.kind = is_transposed ? ModuleTree::Kind::kTransposedLinear : ModuleTree::Kind::kLinear;
  tree.weight = is_transposed ? at::zeros({in, out}) : at::zeros({out, in});
  tree.bias = at::zeros({out});
  tree.parameters = {{"weight", tree.weight}, {"bias", tree.bias}};
  return tree;
}

// Attention that says its heads, and two products after it.
ModuleTree block(ModuleTree fused, int64_t kv_heads, int64_t gates) {
  ModuleTree attention, mlp, model;
  attention.name = "attn";
  attention.heads = 4;
  attention.kv_heads = kv_heads;
  attention.children = {std::move(fused), product("out", 32, 32, true)};
  mlp.name = "mlp";
  mlp.children = {product("up", 32, 48 * gates), product("down", 48, 32)};
  model.children = {std::move(attention), std::move(mlp)};
  return model;
}

TEST(PlanModel, ProductsFusedInBlocksAreCutBlockByBlock) {
  const auto plan = plan_model(block(product("c_attn", 32, 96, true), 4, 2), on("tp=2"));
  const std::vector<std::pair<std::string, std::string>> table = {
      {"attn.c_attn.weight", "S(1/3;8)"}, {"attn.c_attn.bias", "S(0/3;8)"}, {"attn.out.weight", "S(0;8)"},
      {"mlp.up.weight", "S(0/2)"},        {"mlp.up.bias", "S(0/2)"},        {"mlp.down.weight", "S(1)"}};
  for (const auto& [name, placement] : table) {
    EXPECT_EQ(on_tp(plan, name), placement) << name;
  }
  EXPECT_TRUE(plan.notes.empty()) << base::join(plan.notes, "\n");
  EXPECT_EQ(on_tp(plan_model(block(product("c_attn", 32, 96, true), 4, 1), on("tp=2")), "mlp.up.weight"), "S(0)");
}

// The products of four experts in one tensor each, as `transformers` stacks them.
ModuleTree experts(bool is_transposed, int64_t gates, bool alternates = false) {
  const auto sizes = [&](int64_t in, int64_t out) {
    return is_transposed ? std::vector<int64_t>{4, in, out} : std::vector<int64_t>{4, out, in};
  };
  ModuleTree module, model;
  module.name = "experts";
  module.heads = 4;  // what the model's attention has; none of the experts'
  module.kv_heads = 2;
  module.alternates = alternates;
  module.parameters = {{"gate_up_proj", at::zeros(sizes(32, gates * 48))},
                       {"gate_up_proj_bias", at::zeros({4, gates * 48})},
                       {"down_proj", at::zeros(sizes(48, 32))},
                       {"down_proj_bias", at::zeros({4, 32})}};
  model.children = {std::move(module)};
  return model;
}

TEST(PlanModel, StackedProductsOfExpertsAreCutAsOthers) {
  struct Row {
    bool is_transposed;
    int64_t gates;
    bool alternates;
    const char *up, *up_bias, *down;
  };
  for (const Row& row :
       {Row{false, 2, false, "S(1/2)", "S(1/2)", "S(2)"}, Row{true, 2, false, "S(2/2)", "S(1/2)", "S(1)"},
        Row{true, 2, true, "S(2;2)", "S(1;2)", "S(1)"}, Row{false, 1, false, "S(1)", "S(1)", "S(2)"}}) {
    const auto plan = plan_model(experts(row.is_transposed, row.gates, row.alternates), on("tp=2"));
    EXPECT_EQ(on_tp(plan, "experts.gate_up_proj"), row.up);
    EXPECT_EQ(on_tp(plan, "experts.gate_up_proj_bias"), row.up_bias);
    EXPECT_EQ(on_tp(plan, "experts.down_proj"), row.down);
    EXPECT_EQ(on_tp(plan, "experts.down_proj_bias"), "-");
    EXPECT_TRUE(plan.notes.empty()) << base::join(plan.notes, "\n");
  }
  EXPECT_EQ(on_tp(plan_model(experts(false, 2), on("tp=2", 4, 2)), "experts.gate_up_proj"), "S(1/2)");
}

TEST(PlanModel, TensorsOfThreeDimsThatDoNotFollowOneAnotherStayWhole) {
  ModuleTree model;
  model.parameters = {{"a", at::zeros({4, 8, 16})}, {"b", at::zeros({4, 12, 24})}};
  const auto plan = plan_model(model, on("tp=2"));
  EXPECT_EQ(on_tp(plan, "a"), "-");
  EXPECT_TRUE(has_note(plan, "b stays whole"));
  model.parameters = {{"a", at::zeros({4, 8, 16})}, {"b", at::zeros({3, 16, 8})}};
  EXPECT_TRUE(has_note(plan_model(model, on("tp=2")), "a stays whole"));
}

TEST(PlanModel, ProductsFusedOtherwiseStayWhole) {
  const auto by_heads = plan_model(block(product("query_key_value", 32, 96), 4, 1), on("tp=2"));
  EXPECT_EQ(on_tp(by_heads, "attn.query_key_value.weight"), "-");
  EXPECT_TRUE(has_note(by_heads, "query_key_value.weight stays whole"));
  const auto grouped = plan_model(block(product("qkv_proj", 32, 64), 2, 1), on("tp=2"));
  EXPECT_EQ(on_tp(grouped, "attn.qkv_proj.weight"), "-");
  auto options = on("tp=2");
  options.lattice = sums::Lattice{};
  EXPECT_EQ(on_tp(plan_model(block(product("c_attn", 32, 96, true), 4, 1), options), "attn.c_attn.weight"), "-");
}

TEST(PlanModel, SequenceParallelHangsOnEmbeddingsAndRowParallelProducts) {
  models::Gpt model(models::GptConfig{.dim = 64, .layers = 2, .heads = 8});
  auto options = on("dp=2,tp=2", 8, 8);
  options.sequence_parallel = true;
  options.keep_gathered = false;
  const auto plan = plan_model(*model, options);
  EXPECT_NO_THROW(plan.verify(sizes_of(*model)));
  EXPECT_EQ(plan.keep_gathered_bytes, 1);
  const auto shards = layout::parse_placements(plan.mesh, "{dp: S(0), tp: S(1)}");
  for (const auto& entry : plan.parameters) {
    const auto has = [&](const char* part) { return entry.pattern.find(part) != std::string::npos; };
    const bool says_where = has(".wte.") || has(".wpe.") || has(".c_proj.weight");
    EXPECT_EQ(entry.output.has_value(), says_where) << entry.pattern;
    EXPECT_TRUE(!says_where || *entry.output == shards) << entry.pattern;
    EXPECT_FALSE(entry.input) << entry.pattern;
  }
  EXPECT_EQ(on_tp(plan, "transformer.wpe.weight"), "R");
}

TEST(PlanModel, HeadsThatDoNotDivide) {
  models::Llama model(models::LlamaConfig{.dim = 64, .layers = 2, .heads = 8, .kv_heads = 4, .hidden = 100});
  const std::string attention = "model.layers.0.self_attn.";
  auto plan = plan_model(*model, on("tp=3", 8, 4));  // whole groups: 2, 2, 0 key heads
  EXPECT_EQ(on_tp(plan, attention + "q_proj.weight"), "S(0;16)");
  EXPECT_EQ(on_tp(plan, attention + "k_proj.weight"), "S(0;8)");
  EXPECT_TRUE(has_note(plan, "q_proj.weight: 64 in units of 16 over 3 ranks is uneven: 32, 32, 0"));
  EXPECT_TRUE(has_note(plan, "up_proj.weight: 100 over 3 ranks is uneven: 34, 34, 32"));
  EXPECT_TRUE(has_note(plan, "embed_tokens.weight: 256 over 3 ranks is uneven: 86, 86, 84"));

  plan = plan_model(*model, on("tp=8", 8, 4));  // fewer key heads than ranks
  EXPECT_EQ(on_tp(plan, attention + "q_proj.weight"), "S(0;8)");
  EXPECT_EQ(on_tp(plan, attention + "k_proj.weight"), "-");
  EXPECT_EQ(on_tp(plan, attention + "v_proj.weight"), "-");
  EXPECT_EQ(on_tp(plan, attention + "o_proj.weight"), "S(1;8)");
  EXPECT_TRUE(has_note(plan, "8 query and 4 key/value heads for 8 ranks: K and V stay whole"));

  models::Llama many(models::LlamaConfig{.dim = 64, .layers = 1, .heads = 8, .kv_heads = 8, .hidden = 96});
  plan = plan_model(*many, on("tp=3", 8, 8));  // 3, 3, 2
  EXPECT_EQ(on_tp(plan, attention + "q_proj.weight"), "S(0;8)");
  EXPECT_EQ(on_tp(plan, attention + "v_proj.weight"), "S(0;8)");
  EXPECT_TRUE(has_note(plan, "q_proj.weight: 64 in units of 8 over 3 ranks is uneven: 24, 24, 16"));
}

// In `exact` cuts fall between leaves too. Where none falls between heads as well, the attention is not cut.
TEST(PlanModel, AttentionThatNoLeavesDivideStaysWhole) {
  const auto plan_of = [](models::LlamaConfig config, int64_t ranks, bool sequence_parallel = false) {
    models::Llama model(config);
    return plan_model(*model, {.mesh = layout::Mesh({{"tp", ranks}}),
                               .sequence_parallel = sequence_parallel,
                               .heads = config.heads,
                               .kv_heads = config.kv_heads,
                               .lattice = sums::Lattice{}});
  };
  const models::LlamaConfig few{.dim = 48, .layers = 1, .heads = 6, .kv_heads = 3, .hidden = 96};
  const std::string attention = "model.layers.0.self_attn.";
  for (const int64_t ranks : {2, 3, 4, 5, 6, 8}) {
    const auto plan = plan_of(few, ranks);
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}) {
      EXPECT_EQ(on_tp(plan, attention + name), "-") << ranks;
    }
    EXPECT_TRUE(has_note(plan, "o_proj: 6 query and 3 key/value heads for " + std::to_string(ranks) +
                                   " ranks: this attention stays whole"));
    EXPECT_EQ(on_tp(plan, "model.layers.0.mlp.up_proj.weight"), "S(0;12)");
    EXPECT_TRUE(plan_of(few, ranks, true).find(attention + "o_proj.weight")->output);
  }
  const auto even = plan_of({.dim = 64, .layers = 1, .heads = 8, .kv_heads = 4, .hidden = 96}, 8);
  EXPECT_EQ(on_tp(even, attention + "q_proj.weight"), "S(0;8)");
  EXPECT_EQ(on_tp(even, attention + "k_proj.weight"), "-");
}

TEST(PlanModel, ModulesThatAreNotOurs) {
  HandWrittenImpl mlp;
  const auto plan = plan_model(mlp, on("dp=2,tp=4"));
  EXPECT_NO_THROW(plan.verify(sizes_of(mlp)));
  EXPECT_EQ(on_tp(plan, "fc1.weight"), "S(0)");
  EXPECT_EQ(on_tp(plan, "fc1.bias"), "S(0)");
  EXPECT_EQ(on_tp(plan, "fc2.weight"), "S(1)");
  EXPECT_EQ(on_tp(plan, "fc2.bias"), "-");
  EXPECT_EQ(on_tp(plan, "fc3.weight"), "S(0)");
  EXPECT_TRUE(has_note(plan, "fc3.weight: 10 over 4 ranks is uneven: 3, 3, 3, 1"));

  torch::nn::Sequential chain(torch::nn::Linear(8, 8), torch::nn::ReLU(), torch::nn::Linear(8, 8),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), torch::nn::Linear(8, 4));
  const auto chained = plan_model(*chain, on("tp=2"));
  EXPECT_NO_THROW(chained.verify(sizes_of(*chain)));
  EXPECT_EQ(on_tp(chained, "0.weight"), "S(0)");
  EXPECT_EQ(on_tp(chained, "2.weight"), "S(1)");
  EXPECT_EQ(on_tp(chained, "4.weight"), "S(0)");

  TiedImpl own;
  const auto kept = plan_model(own, on("tp=2"));
  EXPECT_EQ(on_tp(kept, "table.weight"), "S(0)");
  EXPECT_EQ(on_tp(kept, "mix"), "-");
  EXPECT_EQ(on_tp(kept, "head.weight"), "-");
  EXPECT_TRUE(has_note(kept, "mix stays whole"));
  EXPECT_FALSE(has_note(kept, "scale"));

  const auto lone = plan_model(*torch::nn::Linear(8, 8), on("tp=2"));
  EXPECT_EQ(on_tp(lone, "weight"), "S(0)");
}

TEST(PlanModel, ChoosesAMesh) {
  models::Llama model(
      models::LlamaConfig{.dim = 96, .layers = 1, .heads = 6, .kv_heads = 6, .hidden = 96, .max_seq = 16});
  const auto plan = [&](int64_t devices, std::optional<sums::Lattice> lattice = {}) {
    return plan_model(*model, {.devices = devices, .heads = 6, .kv_heads = 6, .lattice = lattice});
  };
  EXPECT_EQ(plan(1).mesh.str(), "1");
  EXPECT_TRUE(plan(1).notes.empty());
  EXPECT_EQ(plan(5).mesh.str(), "dp=5");
  EXPECT_EQ(plan(4096).mesh.str(), "dp=4096");
  EXPECT_EQ(plan(12).notes,
            std::vector<std::string>{
                "mesh {dp=12} chosen for 12 ranks, data parallelism first; another is given as the mesh"});

  // In `exact` dp cuts a batch into no more parts than it has leaves.
  const sums::Lattice lattice{.batch = 8, .feature = 8};
  EXPECT_EQ(plan(8, lattice).mesh.str(), "dp=8");
  EXPECT_EQ(plan(12, lattice).mesh.str(), "dp=6,tp=2");
  EXPECT_EQ(plan(64, lattice).mesh.str(), "dp=8,tp=8");
  EXPECT_TRUE(has_note(plan(12, lattice), "mesh {dp=6,tp=2} chosen for 12 ranks"));
  EXPECT_THROW(plan(11, lattice), PlanError);
  EXPECT_THROW(plan(65, lattice), PlanError);
  EXPECT_TRUE(plan_model(*model, on("dp=4")).parameters.empty());
  EXPECT_TRUE(plan_model(*model, on("dp=4,tp=1")).parameters.empty());
}

TEST(PlanModel, RefusesHeadsThatContradict) {
  torch::nn::Linear model(8, 8);
  EXPECT_THROW(plan_model(*model, on("tp=2", 8, 3)), PlanError);
  EXPECT_THROW(plan_model(*model, on("tp=2", 0, 3)), PlanError);
  EXPECT_THROW(plan_model(*model, {.devices = 0}), PlanError);
}

}  // namespace
}  // namespace tessera::plan::plan_model_test
