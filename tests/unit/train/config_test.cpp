#include "tessera/train/run/config.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <unistd.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/train/run/setup.h"

namespace tessera::train::config_test {
namespace {

constexpr const char* kGood = R"(# a comment
[model]
kind = "gpt"
dim = 64
heads = 4
dropout = 0.1

[data]
file = "text.txt"
sequence = 32

[train]
lr = 3e-3
betas = [0.9, 0.99]
weight_decay = 0
proof = true

[parallel]
mesh = "dp=2,tp=2"
ranks = 4
)";

template <typename Action>
std::string config_error(Action action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return base::message_of(error);
  }
  return "no ConfigError";
}

void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Config, ReadsToml) {
  const auto config = parse_config(kGood, "a.toml");
  EXPECT_EQ(config.model.kind, "gpt");
  EXPECT_EQ(config.model.dim, 64);
  EXPECT_DOUBLE_EQ(config.model.dropout, 0.1);
  EXPECT_EQ(config.data.file, "text.txt");
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 3e-3);
  EXPECT_DOUBLE_EQ(config.optimizer.betas[1], 0.99);
  EXPECT_DOUBLE_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.name, "adamw");
  EXPECT_TRUE(config.train.proof);
  EXPECT_EQ(config.mesh().str(), "dp=2,tp=2");
  EXPECT_EQ(config.ranks(), 4);
  EXPECT_EQ(config.model.layers, ModelConfig().layers);
  EXPECT_TRUE(config.is_exact());
  EXPECT_NO_THROW(verify_run(config));
}

TEST(Config, ErrorsNameTheLineAndWhatIsAccepted) {
  struct Case {
    std::string from, to;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"lr = 3e-3", "lrr = 3e-3", {"a.toml line 13", "unknown key \"train.lrr\"", "did you mean \"optimizer.lr\"?"}},
      {"lr = 3e-3", "dim = 3", {"a.toml line 13", "unknown key \"train.dim\"", "did you mean \"model.dim\"?"}},
      {"[train]",
       "[trian]",
       {"line 12", "\"trian\" is no section; did you mean \"train\"?", "[model], [data], [train], [optimizer]"}},
      {"[model]", "[model]\nzzzzzzzz = 1", {"line 3", "unknown key \"model.zzzzzzzz\""}},
      {"# a comment", "steps = 3", {"line 1", "\"steps\" is no section"}},
      {"lr = 3e-3", "lr = \"fast\"", {"line 13: optimizer.lr = 'fast'; accepted: a number above 0"}},
      {"lr = 3e-3", "lr = -1", {"optimizer.lr = -1; accepted: a number above 0"}},
      {"lr = 3e-3", "lr = 0", {"optimizer.lr = 0; accepted: a number above 0"}},
      {"lr = 3e-3", "lr = nan", {"optimizer.lr = nan; accepted: a number above 0"}},
      {"dim = 64", "dim = 6.5", {"line 4: model.dim = 6.5; accepted: a whole number of at least 1"}},
      {"dim = 64", "dim = 0", {"model.dim = 0; accepted: a whole number of at least 1"}},
      {"dropout = 0.1", "dropout = 1", {"model.dropout = 1; accepted: a number of at least 0 and of at most 0.99"}},
      {"kind = \"gpt\"", "kind = \"bert\"", {"model.kind = 'bert'; accepted: \"llama\" or \"gpt\""}},
      {"proof = true", "numerics = \"exakt\"", {"line 16: train.numerics = 'exakt'; accepted: \"exact\" or \"fast\""}},
      {"proof = true", "numeric = \"exact\"", {"unknown key \"train.numeric\"; did you mean \"train.numerics\"?"}},
      {"proof = true",
       "lattice = 8",
       {"line 16: train.lattice = 8; accepted: a text of leaf counts such as \"batch=8,sequence=1,feature=8\""}},
      {"proof = true",
       "lattice = \"batches=8\"",
       {"line 16: train.lattice: [lattice] \"batches=8\": cannot read \"batches=8\""}},
      {"proof = true", "proof = 1", {"train.proof = 1; accepted: true or false"}},
      {"betas = [0.9, 0.99]", "betas = [0.9]", {"optimizer.betas", "accepted: two numbers [a, b] of at least 0"}},
      {"betas = [0.9, 0.99]", "betas = [0.9, 1.5]", {"optimizer.betas", "of at most 0.999999"}},
      {"file = \"text.txt\"", "file = text.txt", {"a.toml line 9 is not TOML", "texts in quotes"}},
      {"[data]", "[model]", {"a.toml line 8 is not TOML"}},
  };
  for (const auto& [from, to, says] : cases) {
    std::string text = kGood;
    text.replace(text.find(from), from.size(), to);
    SCOPED_TRACE(to);
    expect_says(config_error([&] { parse_config(text, "a.toml"); }), says);
  }
}

TEST(Config, AFieldMayStandWhereItStood) {
  const auto old = parse_config("[train]\nlr = 0.5\neps = 1e-6\n", "a.toml");
  EXPECT_EQ(old.optimizer.lr, 0.5);
  EXPECT_EQ(old.optimizer.eps, 1e-6);
  EXPECT_NE(to_toml(old).find("[optimizer]"), std::string::npos);
  EXPECT_EQ(to_toml(parse_config(to_toml(old), "b.toml")), to_toml(old));
  expect_says(config_error([] { parse_config("[train]\nlr = 0.5\n[optimizer]\nlr = 0.5\n", "a.toml"); }),
              {"is given as well; accepted: optimizer.lr alone", "train.lr"});
}

TEST(Config, NamesItsOptimizer) {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"adamw", "AdamW"}, {"sgd", "SGD"}, {"lion", "Lion"}, {"adamw8bit", "AdamW8bit"}};
  for (const auto& [name, kind] : kinds) {
    auto config = parse_config("[optimizer]\nlr = 0.5\nweight_decay = 0.25\n", "a.toml");
    set_field(config, "optimizer.name=" + name);
    EXPECT_NO_THROW(config.verify_optimizer()) << name;
    const auto optimizer = make_optimizer(config, {at::ones(4)});
    EXPECT_EQ(parallel::find_kind(*optimizer)->name, kind);
    EXPECT_EQ(optimizer->defaults().get_lr(), 0.5) << name;
  }
  expect_says(config_error([] { parse_config("[optimizer]\nname = \"adam\"\n", "a.toml"); }),
              {"optimizer.name = 'adam'; accepted: \"adamw\" or \"sgd\" or \"lion\" or \"adamw8bit\""});
}

TEST(Config, ContradictionsAreRefused) {
  struct Case {
    std::vector<std::string> sets;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {{"parallel.ranks=8"}, {"{dp=2,tp=2} has 4 ranks, but parallel.ranks is 8", "accepted: parallel.ranks = 4"}},
      {{"parallel.mesh=dp=2,tp"}, {"[mesh] \"dp=2,tp\" is no mesh"}},
      {{"parallel.mesh=dp=0"}, {"[mesh] \"dp=0\" is no mesh"}},
      {{"data.file="}, {"data.file is not given"}},
      {{"train.batch=2", "train.accumulate=4"}, {"train.batch 2 is smaller than train.accumulate 4"}},
      {{"recompute.modules=model.layers.*", "parallel.plan=plan.json"},
       {"recompute.modules has no effect beside parallel.plan", "\"recompute\" in the plan file"}},
      {{"precision.compute=bf16"}, {"precision.compute \"bf16\"", "accepted: float32, float64"}},
      {{"precision.compute=bfloat16", "parallel.plan=plan.json"},
       {"precision has no effect beside parallel.plan", "\"compute_dtype\""}},
      {{"recompute.keep=linear"}, {"recompute.keep has no effect without recompute.modules", "model.layers.*"}},
      {{"recompute.modules=h", "recompute.keep=linear", "parallel.plan=plan.json"},
       {"has no effect beside parallel.plan"}},
      {{"offload.activations=model.layers.*", "parallel.plan=plan.json"},
       {"offload.activations has no effect beside parallel.plan", "\"offload\" in the plan file"}},
      {{"offload.folder=/tmp"}, {"offload.folder has no effect without offload.activations"}},
      {{"parallel.schedule=1f2b"}, {"there is no schedule \"1f2b\"", "did you mean \"1f1b\"?"}},
      {{"parallel.schedule=1f1b", "parallel.plan=plan.json"},
       {"parallel.schedule has no effect beside parallel.plan", "\"schedule\" in the plan file"}},
      {{"parallel.stages_per_rank=2"}, {"parallel.stages_per_rank has no effect without parallel.schedule"}},
      {{"parallel.schedule=1f1b", "parallel.stages_per_rank=2", "parallel.mesh=pp=4"},
       {"1f1b with 2 stages on each rank; accepted: 1"}},
      // Three samples each: of seven micro-batches six have some.
      {{"parallel.schedule=dualpipe-v", "parallel.mesh=pp=4", "train.batch=16", "train.accumulate=7"},
       {"mesh {pp=4} with train.batch 16 and train.accumulate 7: [schedule] dualpipe-v of 6 micro-batches on 4 ranks"}},
      {{"optimizer.momentum=0.9"}, {"optimizer.momentum has no effect on adamw", "optimizer.name = \"sgd\""}},
      {{"optimizer.name=sgd"}, {"optimizer.betas has no effect on sgd", "\"adamw\" or \"lion\""}},
      {{"optimizer.name=lion", "optimizer.eps=1e-6"}, {"optimizer.eps has no effect on lion", "\"adamw\""}},
      {{"train.min_lr=1"}, {"train.min_lr 1 is above optimizer.lr 0.003"}},
      {{"model.heads=5"}, {"dim 64 with 5 heads"}},
      {{"model.hidden=64"}, {"model.hidden has no effect on a gpt", "model.kind = \"llama\""}},
      {{"model.kind=llama"}, {"model.dropout has no effect on a llama", "model.kind = \"gpt\""}},
      {{"model.kind=llama", "model.dropout=0", "model.kv_heads=3"}, {"4 heads with 3 kv_heads"}},
  };
  for (const auto& [sets, says] : cases) {
    auto config = parse_config(kGood, "a.toml");
    for (const auto& set : sets) {
      set_field(config, set);
    }
    SCOPED_TRACE(sets.front());
    expect_says(config_error([&] { verify_run(config); }), says);
  }
}

TEST(Config, SetChangesOneField) {
  auto config = parse_config(kGood, "a.toml");
  set_field(config, "optimizer.lr=1e-2");
  set_field(config, "train.weight_decay=0.5");  // as it was called
  set_field(config, "train.steps = 7");
  set_field(config, "model.kind=llama");
  set_field(config, "parallel.mesh=tp=4");
  set_field(config, "data.file=\"quoted file\"");
  set_field(config, "optimizer.betas=[0.5, 0.25]");
  set_field(config, "optimizer.name=lion");
  set_field(config, "train.proof=false");
  set_field(config, "train.numerics=exact");
  set_field(config, "train.lattice=feature=16,batch=4");
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 1e-2);
  EXPECT_DOUBLE_EQ(config.optimizer.weight_decay, 0.5);
  EXPECT_EQ(config.optimizer.name, "lion");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.model.kind, "llama");
  EXPECT_EQ(config.parallel.mesh, "tp=4");
  EXPECT_EQ(config.data.file, "quoted file");
  EXPECT_DOUBLE_EQ(config.optimizer.betas[0], 0.5);
  EXPECT_FALSE(config.train.proof);
  EXPECT_TRUE(config.is_exact());
  EXPECT_EQ(config.train.lattice.str(), "batch=4,sequence=1,feature=16");

  expect_says(config_error([&] { set_field(config, "train.lr"); }),
              {"--set train.lr has no value", "optimizer.lr=1e-3"});
  expect_says(config_error([&] { set_field(config, "lr=1"); }),
              {"unknown key \"lr\"", "did you mean \"optimizer.lr\"?"});
  expect_says(config_error([&] { set_field(config, "train.lr=fast"); }),
              {"--set train.lr=fast", "accepted: a number above 0"});
  expect_says(config_error([&] { set_field(config, "train.steps=1e3"); }), {"accepted: a whole number of at least 1"});
}

TEST(Config, FilesAreRelativeToTheConfiguration) {
  const auto folder = std::filesystem::temp_directory_path() / ("tessera_config_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "data");
  std::ofstream(folder / "a.toml") << kGood;
  std::ofstream(folder / "b.toml") << "[data]\nfile = \"/abs/text.txt\"\n";
  EXPECT_EQ(read_config(folder / "a.toml").data.file, (folder / "text.txt").string());
  EXPECT_EQ(read_config(folder / "a.toml").parallel.plan, "");
  EXPECT_EQ(read_config(folder / "b.toml").data.file, "/abs/text.txt");
  expect_says(config_error([&] { read_config(folder / "c.toml"); }),
              {"cannot read", "c.toml", "accepted: a TOML file"});
  std::filesystem::remove_all(folder);
}

TEST(Config, EveryFieldCanBeSetToItself) {
  // The one list of fields names every field once.
  const auto names = field_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.size(), 56u);
}

}  // namespace
}  // namespace tessera::train::config_test
