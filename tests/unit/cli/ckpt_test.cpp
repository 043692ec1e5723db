// `tessera ckpt` on the checkpoints of small runs: each verb, what it finds, and what it refuses.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/checkpoint/format/sealed.h"
#include "tessera/cli/progress_bar.h"
#include "tests/unit/cli/support.h"

namespace tessera::cli::ckpt_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder with a text and two models that train in no time.
class Ckpt : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tessera_ckpt_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) {
      text << "line " << i << " of a text that repeats itself, line after line.\n";
    }
    const std::string rest =
        "dim = 16\nlayers = 1\nheads = 4\n[data]\nfile = \"text.txt\"\nsequence = 8\n[train]\nsteps = 10\nbatch = 8\n"
        "lr = 1e-2\neval_batches = 1\n";
    std::ofstream(folder_ / "llama.toml") << "[model]\nkind = \"llama\"\nhidden = 24\n" << rest;
    std::ofstream(folder_ / "gpt.toml") << "[model]\nkind = \"gpt\"\ndropout = 0.1\ntie_embeddings = true\n" << rest;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  void train(const std::string& model, const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> command = {"train", path(model + ".toml"), "--quiet", "--out", path(run)};
    command.insert(command.end(), more.begin(), more.end());
    const auto outcome = call(command);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  // The losses and norms of a run.
  std::vector<std::string> curve(const std::string& run) const {
    std::ifstream file(folder_ / run / "metrics.jsonl");
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) {
      const auto record = json::parse(line);
      all.push_back(record.at("step").dump() + " " + record.at("loss").dump() + " " + record.at("grad_norm").dump());
    }
    return all;
  }

  json shown(const std::string& folder) const {
    const auto outcome = call({"ckpt", "show", path(folder), "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  // The hash of each parameter.
  std::map<std::string, std::string> hashes(const std::string& folder) const {
    std::map<std::string, std::string> all;
    const auto summary = shown(folder);
    for (const auto& tensor : summary.at("tensors")) {
      if (tensor.at("role") == "parameter") {
        all[tensor.at("name")] = tensor.at("hash");
      }
    }
    return all;
  }

  // One bit of the parameters, or their last byte, of a run's step.
  void damage(const std::string& run, int64_t step, bool is_cut) const {
    const auto part = fs::path(checkpoint(run, step)) / "model-00001-of-00002.safetensors";
    auto content = content_of(part);
    content.back() = static_cast<char>(content.back() ^ 1);
    if (is_cut) {
      content.pop_back();
    }
    std::ofstream(part, std::ios::binary) << content;
  }

  std::string checkpoint(const std::string& run, int64_t step) const {
    return path(run + "/checkpoints/step_0000" + (step < 10 ? "0" : "") + std::to_string(step));
  }

  fs::path folder_;
};

TEST_F(Ckpt, ShowSaysWhatThereIs) {
  train("gpt", "run", {"--mesh", "dp=2,tp=2", "--save-every", "5"});
  const auto summary = shown("run");
  EXPECT_EQ(summary.at("step"), 10);
  EXPECT_EQ(summary.at("ranks"), 4);
  EXPECT_EQ(summary.at("steps").size(), 2u);
  EXPECT_EQ(summary.at("steps")[0].at("state"), "whole");
  EXPECT_EQ(summary.at("values").at("job").at("step"), 10);
  int64_t bytes = 0;
  for (const auto& file : summary.at("files")) {
    EXPECT_EQ(fs::file_size(folder_ / "run/checkpoints/step_000010" / file.at("name").get<std::string>()),
              file.at("bytes").get<uintmax_t>());
    bytes += file.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(summary.at("bytes"), bytes);
  const auto& tensors = summary.at("tensors");
  const auto fused = std::find_if(tensors.begin(), tensors.end(), [](const json& tensor) {
    return tensor.at("name") == "transformer.h.0.attn.c_attn.weight";
  });
  ASSERT_NE(fused, tensors.end());
  EXPECT_EQ(fused->at("sizes"), (std::vector<int64_t>{16, 48}));  // as GPT-2's files have it
  EXPECT_EQ(fused->at("dtype"), "float32");
  EXPECT_EQ(fused->at("layout"), "{dp: R, tp: S(0)}");  // no rank held it whole on the way
  const auto text = call({"ckpt", "show", path("run/checkpoints/step_000005")}).out;
  EXPECT_TRUE(has(text, "step 5, save ")) << text;
  EXPECT_TRUE(has(text, "exp_avg_sq/transformer.wte.weight")) << text;
}

TEST_F(Ckpt, VerifyFindsOneBit) {
  train("llama", "run", {"--mesh", "tp=2", "--save-every", "10"});
  const auto whole = call({"ckpt", "verify", path("run"), "--values"});
  EXPECT_EQ(whole.code, 0) << whole.out << whole.err;
  EXPECT_TRUE(has(whole.out, "every value has its hash")) << whole.out;
  const auto part = folder_ / "run/checkpoints/step_000010/state-00001.safetensors";
  auto content = content_of(part);
  content[content.size() - 9] ^= 1;
  std::ofstream(part, std::ios::binary) << content;
  const auto damaged = call({"ckpt", "verify", path("run")});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_TRUE(has(damaged.out, "state-00001.safetensors")) << damaged.out;
  EXPECT_TRUE(has(damaged.out, "exp_avg")) << damaged.out;
  const auto as_json = call({"ckpt", "verify", path("run"), "--json"});
  EXPECT_EQ(as_json.code, 1);
  EXPECT_EQ(json::parse(as_json.out).at("damage").size(), 1u);
}

// The newest that is whole is found before the ranks begin, a damaged block when they read it.
TEST_F(Ckpt, ARunGoesOnBeforeWhatIsDamaged) {
  train("gpt", "whole", {"--mesh", "dp=2", "--save-every", "2", "--keep", "0"});
  for (const bool is_cut : {true, false}) {
    const std::string run = is_cut ? "cut" : "flipped";
    train("gpt", run, {"--mesh", "dp=2", "--save-every", "2", "--keep", "0"});
    damage(run, 6, is_cut);
    damage(run, 8, is_cut);
    fs::remove_all(checkpoint(run, 10));
    const auto verified = call({"ckpt", "verify", path(run)});
    EXPECT_EQ(verified.code, 1) << verified.err;
    EXPECT_TRUE(has(verified.out, "step_000008/model-00001-of-00002.safetensors")) << verified.out;
    const auto resumed = call({"train", path("gpt.toml"), "--out", path(run), "--mesh", "dp=2", "--save-every", "2",
                               "--keep", "0", "--resume", "auto"});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    for (const char* says : {"step_000008", "step_000006", "goes on after step 4\n"}) {
      EXPECT_TRUE(has(resumed.out, says)) << resumed.out;
    }
    EXPECT_EQ(curve(run), curve("whole"));
    for (const int64_t step : {6, 8}) {
      EXPECT_TRUE(fs::exists(path(run + "/checkpoints/damaged_step_00000" + std::to_string(step))));
      EXPECT_EQ(call({"ckpt", "diff", checkpoint(run, step), checkpoint("whole", step)}).code, 0);
    }
  }
}

TEST_F(Ckpt, ARunWhoseCheckpointsAreAllDamagedStaysAsItIs) {
  train("llama", "run", {"--mesh", "tp=2", "--steps", "4", "--save-every", "2"});  // keeps two
  const auto before = curve("run");
  for (const bool is_cut : {false, true}) {
    damage("run", 2, is_cut);
    damage("run", 4, is_cut);
    const auto refused = call(
        {"train", path("llama.toml"), "--out", path("run"), "--mesh", "tp=2", "--save-every", "2", "--resume", "auto"});
    EXPECT_EQ(refused.code, 1) << refused.out;
    for (const char* says : {"step_000002/model-00001-of-00002", "step_000004/model-00001-of-00002"}) {
      EXPECT_TRUE(has(refused.err, says)) << refused.err;
    }
    EXPECT_EQ(has(refused.err, "--replace to begin again"), is_cut) << refused.err;
    EXPECT_EQ(call({"ckpt", "verify", path("run")}).code, 1);
    EXPECT_TRUE(fs::exists(checkpoint("run", 4)));
    EXPECT_EQ(curve("run"), before);
  }
}

// Two runs that part at step 7: the first six checkpoints are the same, on other meshes too.
TEST_F(Ckpt, DiffNamesTheStepAndTheTensors) {
  train("gpt", "a", {"--mesh", "dp=2", "--save-every", "1", "--keep", "0"});
  fs::create_directories(path("b/checkpoints"));
  for (int step = 1; step <= 6; ++step) {
    const auto name = "checkpoints/step_00000" + std::to_string(step);
    fs::copy(folder_ / "a" / name, folder_ / "b" / name);
  }
  train("gpt", "b",
        {"--mesh", "tp=2", "--save-every", "1", "--keep", "0", "--resume", "auto", "--set", "train.clip=0.01"});
  const auto outcome = call({"ckpt", "diff", path("a"), path("b"), "--json"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  const auto found = json::parse(outcome.out);
  EXPECT_EQ(found.at("steps").size(), 10u);
  EXPECT_EQ(found.at("first").at("steps"), (std::vector<int>{7, 7}));
  std::set<std::string> names;
  for (const auto& tensor : found.at("first").at("tensors")) {
    names.insert(tensor.at("name").get<std::string>());
  }
  EXPECT_EQ(names, [&] {
    std::set<std::string> all;
    for (const auto& [name, hash] : hashes("a")) {
      all.insert({name, "exp_avg/" + name, "exp_avg_sq/" + name});
    }
    return all;
  }());
  const auto text = call({"ckpt", "diff", path("a"), path("b")}).out;
  EXPECT_TRUE(has(text, "is 7\n")) << text;
  EXPECT_TRUE(has(text, "  transformer.wte.weight\n")) << text;
  const auto far = json::parse(
      call({"ckpt", "diff", path("a/checkpoints/step_000006"), path("a/checkpoints/step_000007"), "--values", "--json"})
          .out);
  EXPECT_FALSE(far.at("same"));
  EXPECT_GT(far.at("tensors")[0].at("elements"), 0);
  EXPECT_GT(far.at("tensors")[0].at("largest"), 0.0);
  EXPECT_EQ(far.at("values"), (std::vector<std::string>{"job", "optimizer"}));
  const auto same = call({"ckpt", "diff", path("a/checkpoints/step_000006"), path("b/checkpoints/step_000006")});
  EXPECT_EQ(same.code, 0) << same.out;
}

// Values of an older checkpoint are read: its hashes tell nothing.
TEST_F(Ckpt, DiffOfTwoVersionsComparesValues) {
  train("gpt", "a", {"--mesh", "dp=2", "--save-every", "1", "--keep", "0", "--set", "train.steps=2"});
  fs::copy(folder_ / "a", folder_ / "b", fs::copy_options::recursive);
  const auto manifest = fs::path(checkpoint("b", 1)) / "manifest.json";
  auto text = content_of(manifest);
  text.erase(text.rfind(",\n\"checksum\""));
  text.replace(text.find("\"version\":2"), 11, "\"version\":1");
  std::string name = "transformer.wte.weight\"";
  const auto hash = text.find("\"", text.find("],\"", text.rfind(name)) + 2) + 1;
  text.replace(hash, 16, "0123456789abcdef");
  std::ofstream(manifest, std::ios::binary) << checkpoint::seal(text);
  const auto same = call({"ckpt", "diff", checkpoint("a", 1), checkpoint("b", 1)});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  const auto other = call({"ckpt", "diff", checkpoint("b", 1), checkpoint("a", 2), "--json"});
  EXPECT_EQ(other.code, 1) << other.err;
  const auto difference = json::parse(other.out);
  for (const auto& tensor : difference.at("tensors")) {
    EXPECT_GT(tensor.at("elements"), 0);
  }
  EXPECT_TRUE(has(call({"ckpt", "verify", checkpoint("b", 1), "--values"}).err, "accepted: one of version 2"));
  const auto anew = call({"ckpt", "reshard", checkpoint("b", 1), path("c"), "--mesh", "tp=2"});
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_EQ(hashes("c/step_000001"), hashes("a/checkpoints/step_000001"));
}

// Written anew for other ranks, a checkpoint is the same to whoever loads it; for the same ranks its files are as long.
TEST_F(Ckpt, ReshardThenLoadIsLoad) {
  for (const char* model : {"llama", "gpt"}) {
    const std::string run = model, step = "/checkpoints/step_000005";
    train(model, run, {"--mesh", "dp=2,tp=2", "--save-every", "5"});
    int count = 0;
    for (const char* mesh : {"1", "tp=3", "dp=2,tp=2", "tp=2,dp=2"}) {
      const auto to = run + "_" + std::to_string(count++);
      std::vector<std::string> command = {"ckpt", "reshard", path(run + step), path(to), "--mesh", mesh};
      if (count % 2 == 0) {
        command.push_back("--in-slices");
      }
      const auto outcome = call(command);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, path(to + "/step_000005") + "\n");
      EXPECT_EQ(call({"ckpt", "verify", path(to), "--values"}).code, 0);
      const auto same = call({"ckpt", "diff", path(to + "/step_000005"), path(run + step)});
      EXPECT_EQ(same.code, 0) << same.out;
      train(model, to + "_resumed", {"--resume", path(to + "/step_000005"), "--mesh", "dp=4"});
      const auto whole = curve(run);
      EXPECT_EQ(curve(to + "_resumed"), std::vector<std::string>(whole.begin() + 5, whole.end()));
      EXPECT_TRUE(content_of(path(to + "_resumed/model.safetensors")) == content_of(path(run + "/model.safetensors")));
    }
    const auto again = shown(run + "_2/step_000005").at("files"), before = shown(run + step).at("files");
    std::set<json> a(again.begin(), again.end()), b(before.begin(), before.end());
    EXPECT_EQ(a, b);
  }
}

TEST_F(Ckpt, ExportThenImportIsTheSame) {
  for (const char* model : {"llama", "gpt"}) {
    const std::string run = model;
    train(model, run, {"--mesh", "tp=2", "--save-every", "10"});
    ASSERT_EQ(call({"ckpt", "export-hf", path(run), path(run + "_hf")}).code, 0);
    const auto imported = call({"ckpt", "import-hf", path(run + "_hf"), path(run + "_in"), "--step", "3"});
    ASSERT_EQ(imported.code, 0) << imported.err;
    EXPECT_TRUE(has(imported.out, "step_000003\n")) << imported.out;
    EXPECT_TRUE(has(imported.out, "dim = 16")) << imported.out;
    EXPECT_EQ(hashes(run + "_in"), hashes(run));
    // A run that begins with it and learns too little for one bit has the same model, on any mesh.
    train(model, run + "_again",
          {"--init-from", path(run + "_in"), "--mesh", "dp=2", "--steps", "1", "--set", "train.lr=1e-30"});
    EXPECT_TRUE(content_of(path(run + "_again/model.safetensors")) == content_of(path(run + "/model.safetensors")));
    for (const char* dtype : {"bfloat16", "float64"}) {
      const auto to = run + "_" + dtype;
      ASSERT_EQ(call({"ckpt", "export-hf", path(run), path(to), "--dtype", dtype}).code, 0);
      ASSERT_EQ(call({"ckpt", "import-hf", path(to), path(to + "_in"), "--dtype", "float32"}).code, 0);
      EXPECT_EQ(hashes(to + "_in") == hashes(run), std::string(dtype) == "float64");
    }
  }
}

TEST_F(Ckpt, WhatCannotBeMeantIsRefused) {
  train("llama", "run", {"--save-every", "10"});
  train("gpt", "gpt", {"--save-every", "10"});
  fs::create_directories(path("empty"));
  fs::create_directories(path("other"));
  std::ofstream(path("other/config.json")) << R"({"model_type": "bert", "vocab_size": 5})";
  fs::create_directories(path("no_weights"));
  fs::copy(path("run/config.json"), path("no_weights/config.json"));
  fs::create_directories(path("biased"));
  auto biased = json::parse(content_of(path("run/config.json")));
  biased["attention_bias"] = true;
  std::ofstream(path("biased/config.json")) << biased;
  ASSERT_EQ(call({"ckpt", "import-hf", path("run"), path("in")}).code, 0);
  struct Case {
    std::vector<std::string> command;
    std::string says;
  };
  const std::string run = path("run"), new_folder = path("new");
  for (const auto& [command, says] :
       std::vector<Case>{{{"show", path("nothing")}, "nothing"},
                         {{"show", path("empty")}, "has no whole checkpoint"},
                         {{"verify", path("text.txt")}, "text.txt"},
                         {{"diff", run, path("empty")}, "no step is whole in both"},
                         {{"reshard", run, new_folder, "--mesh", "dp"}, "\"dp\" is no mesh"},
                         {{"reshard", run, path("run/checkpoints"), "--mesh", "2"}, "\"2\" is no mesh"},
                         {{"reshard", run, path("run/checkpoints"), "--mesh", "dp=2"}, "is saved there already"},
                         {{"export-hf", run, run}, "has files already"},
                         {{"import-hf", path("empty"), new_folder}, "config.json\" cannot be read"},
                         {{"import-hf", path("other"), new_folder}, "model_type bert; accepted: llama, gpt2"},
                         {{"import-hf", path("biased"), new_folder}, "attention_bias = true"},
                         {{"import-hf", path("no_weights"), new_folder}, "has neither model.safetensors nor"},
                         {{"import-hf", run, path("in")}, "is saved there already"}}) {
    std::vector<std::string> all = {"ckpt"};
    all.insert(all.end(), command.begin(), command.end());
    const auto outcome = call(all);
    EXPECT_EQ(outcome.code, 1) << command.front() << outcome.out;
    EXPECT_TRUE(has(outcome.err, says)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(new_folder + "/step_000000"));
  EXPECT_EQ(call({"ckpt", "verify", run}).code, 0);  // what was refused changed nothing
  EXPECT_EQ(call({"ckpt"}).code, 2);
  const auto wrong = call({"train", path("llama.toml"), "--quiet", "--init-from", path("gpt")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "model.kind = \"gpt\"")) << wrong.err;
  const auto heads =
      call({"train", path("llama.toml"), "--quiet", "--init-from", path("in"), "--set", "model.heads=2"});
  EXPECT_TRUE(has(heads.err, "model.heads = 4 (the configuration has 2)")) << heads.err;
}

TEST(ProgressBar, SaysHowFarItIs) {
  EXPECT_EQ(progress_text("verify", int64_t{1} << 29, int64_t{1} << 30, 2),
            "verify  [###############...............]  50 %  512 MiB of 1 GiB, 256 MiB/s");
  EXPECT_EQ(progress_text("verify", 5, 0, 0), "verify  5 B");
  EXPECT_EQ(progress_text("verify", 30, 20, 0), "verify  [##############################]  100 %  30 B of 20 B");
}

}  // namespace
}  // namespace tessera::cli::ckpt_test
