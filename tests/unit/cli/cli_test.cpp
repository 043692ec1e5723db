#include "tests/unit/cli/support.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tests/support/axis_names.h"

namespace tessera::cli::cli_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A folder with a text and a configuration of a model that trains in no time.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tessera_cli_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) {
      text << "line " << i << " of a text that repeats itself, line after line.\n";
    }
    std::ofstream(folder_ / "empty.txt");
    std::ofstream(folder_ / "small.toml") << R"([model]
kind = "llama"
dim = 16
layers = 1
heads = 2
hidden = 24
[data]
file = "text.txt"
sequence = 8
[train]
steps = 4
batch = 4
lr = 1e-2
eval_batches = 1
[parallel]
mesh = "dp=2,tp=2"
)";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // The lines of a file.
  std::vector<std::string> lines(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) {
      all.push_back(line);
    }
    return all;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(Cli, TheFlagsAreTheseAndNoOthers) {
  EXPECT_EQ(
      flag_list(),
      "ckpt: --help\n"
      "ckpt show: --help folder --json\n"
      "ckpt verify: --help folder --values --json\n"
      "ckpt diff: --help a b --values --json\n"
      "ckpt reshard: --help from to --mesh --in-slices\n"
      "ckpt export-hf: --help from to --dtype\n"
      "ckpt import-hf: --help from to --step --dtype\n"
      "compare: --help config --dtype --numerics --lattice --seed --microbatches --vocabulary --set arguments --mesh "
      "--schedule --steps --tolerance --processes --json\n"
      "estimate: --help config --dtype --numerics --lattice --seed --microbatches --vocabulary --set --mesh --schedule "
      "--ranks --rank --memory --json\n"
      "explain: --help config --dtype --numerics --lattice --seed --microbatches --vocabulary --set --mesh --schedule "
      "--ranks --step --rank --width --json\n"
      "generate: --help run --prompt --max-tokens --temperature --top-k --top-p --seed\n"
      "info: --help\n"
      "launch: --help --ranks --log-dir --grace command\n"
      "plan: --help config --dtype --numerics --lattice --seed --microbatches --vocabulary --set --mesh --schedule "
      "--ranks\n"
      "schedule: --help\n"
      "schedule show: --help name --stages --microbatches --chunks --vocabulary --costs --svg --trace --csv "
      "--communication --waits\n"
      "schedule verify: --help name --stages --microbatches --chunks --vocabulary --buffers --peak\n"
      "schedule replay: --help name --stages --microbatches --chunks --vocabulary --costs --json\n"
      "trace: --help flights\n"
      "train: --help config --dtype --numerics --lattice --seed --microbatches --vocabulary --set --mesh --schedule "
      "--ranks "
      "--steps --metrics --ledger --out --replace --save-every --keep --resume --init-from --profile --quiet\n");
}

TEST_F(Cli, ExplainSaysWhatAStepDoes) {
  const auto [code, out, err] = call({"explain", path("small.toml"), "--width", "100"});
  EXPECT_EQ(code, 0) << err;
  EXPECT_TRUE(out.starts_with("rank 0 of 4: ")) << out;
  EXPECT_TRUE(has(out, "most worth removing:\n")) << out;
  EXPECT_TRUE(has(out, "plan: \"model.layers.*.")) << out;
  for (const char* phase : {"  forward  ", "  backward  ", "  update  "}) {
    EXPECT_TRUE(has(out, phase)) << out;
  }
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  const auto json = nlohmann::json::parse(call({"explain", path("small.toml"), "--rank", "3", "--json"}).out);
  EXPECT_EQ(json.at("rank"), 3);
  EXPECT_GT(json.at("bytes"), 0);
  const auto wrong = call({"explain", path("small.toml"), "--step", "9"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "[explain] step 9 of a run of 4 steps; accepted: steps 1 to 4")) << wrong.err;
}

TEST_F(Cli, EstimateSaysWhatAStepTakes) {
  const auto [code, out, err] = call({"estimate", path("small.toml"), "--mesh", "dp=8,tp=2", "--memory", "1MiB"});
  EXPECT_EQ(code, 0) << err;
  EXPECT_TRUE(has(out, " on 16 ranks (dp=8,tp=2), 32 tokens a step\nranks 0, 1, 14, 15 of 16 looked at; ")) << out;
  for (const char* part : {"\n  parameters ", "\n  optimizer ", "\n  activations ", "\n  peak ",
                           "\nsends in a step: ", "\n  tp ", "\n  dp ", "\nfits in 1 MiB: "}) {
    EXPECT_TRUE(has(out, part)) << part << "\n" << out;
  }
  const auto small = call({"estimate", path("small.toml"), "--memory", "1kB"});
  EXPECT_EQ(small.code, 1);
  EXPECT_TRUE(has(small.out, "\ndoes NOT fit in 1 KiB: ")) << small.out;
  const auto json = nlohmann::json::parse(call({"estimate", path("small.toml"), "--rank", "3", "--json"}).out);
  EXPECT_EQ(json.at("largest"), 3);
  ASSERT_EQ(json.at("looked_at").size(), 1u);
  EXPECT_EQ(json.at("looked_at")[0].at("peak"), json.at("peak"));
  int64_t bytes = 0;
  for (const auto& entry : json.at("looked_at")[0].at("sent")) {
    bytes += entry.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(json.at("looked_at")[0].at("bytes_sent"), bytes);
  const auto wrong = call({"estimate", path("small.toml"), "--rank", "9"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "[estimate] rank 9 of 4 ranks; accepted: ranks 0 to 3")) << wrong.err;
  EXPECT_EQ(call({"estimate", path("small.toml"), "--memory", "much"}).code, 2);
}

TEST_F(Cli, UsageErrorsAreTwo) {
  EXPECT_EQ(call({}).code, 2);
  EXPECT_EQ(call({"trian"}).code, 2);
  EXPECT_EQ(call({"train"}).code, 2);
  EXPECT_EQ(call({"train", "a.toml", "--step", "3"}).code, 2);
  EXPECT_EQ(call({"train", "a.toml", "--steps", "many"}).code, 2);
  EXPECT_EQ(call({"--help"}).code, 0);
  EXPECT_TRUE(has(call({"train", "--help"}).out, "--metrics"));
}

TEST_F(Cli, InfoSaysVersionsAndThreads) {
  const auto outcome = call({"info"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* part :
       {"tessera ", "libtorch ", "cpu capability ", "exact kernels ", "cores ", "  1 rank ", "  8 ranks  1"}) {
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
  }
}

TEST_F(Cli, AFailedRunLeavesOneParagraph) {
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::string config = path("small.toml");
  const std::vector<Case> cases = {
      {{"train", path("none.toml")}, "cannot read"},
      {{"train", config, "--set", "train.lrr=1"}, "did you mean \"optimizer.lr\"?"},
      {{"train", config, "--mesh", "dp=2,tp"}, "is no mesh"},
      {{"train", config, "--mesh", "dp=2,tp=2", "--ranks", "3"}, "has 4 ranks, but parallel.ranks is 3"},
      {{"train", config, "--dtype", "float16"}, "accepted: \"float32\" or \"float64\""},
      {{"train", config, "--set", "data.file=" + path("none.txt")}, "cannot open"},
      {{"train", config, "--set", "data.file=" + path("empty.txt")}, "is empty"},
      {{"train", config, "--set", "data.sequence=1000000"}, "a shorter sequence"},
      {{"train", config, "--set", "parallel.plan=" + path("none.json")}, "cannot read parallel.plan"},
      {{"train", config, "--metrics", path("no/folder/m.jsonl")}, "cannot write --metrics"},
      {{"train", config, "--numerics", "exakt"},
       "--set train.numerics=exakt: train.numerics = 'exakt'; accepted: \"exact\" or \"fast\""},
      {{"train", config, "--numerics", "exact", "--lattice", "batch=0"},
       "train.lattice: [lattice] \"batch=0\": \"0\" leaves"},
      {{"compare", config, "--mesh", "1", "--mesh", "tp=2", "--numerics", "exact", "--tolerance", "1e-3"},
       "leave it out, or --numerics fast"},
      {{"compare", config, "--mesh", "1"}, "at least two"},
      {{"train", config, "--schedule", "1f2b"}, "no schedule \"1f2b\"; accepted: gpipe, 1f1b, interleaved, "},
      {{"train", config, "--schedule", "zb-h"}, "; did you mean \"zb-h1\"?"},
      {{"train", config, "--microbatches", "0"}, "train.accumulate = 0; accepted: a whole number of at least 1"},
      {{"train", config, "--mesh", "pp=2", "--schedule", "dualpipe-v", "--microbatches", "3"},
       "mesh {pp=2} with train.batch 4 and train.accumulate 3: [schedule] dualpipe-v of 2 micro-batches on 2 ranks, "
       "which wants 2 micro-batches a rank or more; accepted: 4 micro-batches on 2 ranks"},
      {{"compare", config, "--mesh", "1", "--mesh", "tp=2;sp"},
       "2 ranks cut positions (sequence parallelism), of which the lattice has 1 leaf; accepted: a lattice with at "
       "least 2"},
      {{"compare", config, "--mesh", "1", "--mesh", "dp=16"},
       "16 ranks cut the samples of a step, of which the lattice has 8 leaves"},
      {{"compare", config, "--mesh", "1", "--mesh", "tp=2;fast"}, "\"fast\" in \"tp=2;fast\" is no option"},
      {{"compare", config, "--mesh", "1", "--mesh", "tp=2", "--steps", "9"},
       "accepted: 1 to the configuration's train.steps 4"},
      {{"compare", config, "--mesh", "1", "--mesh", "1;train.steps=1", "--steps", "2"},
       "accepted: 1 to the configuration's train.steps 1"},
  };
  for (const auto& [arguments, says] : cases) {
    const auto outcome = call(arguments);
    SCOPED_TRACE(says + "\n" + outcome.err);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(has(outcome.err, says));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
    EXPECT_FALSE(has(outcome.err, "frame #"));
  }
}

TEST_F(Cli, FortyNamesOfAxesHaveARoleOrAreRefused) {
  const std::string config = path("small.toml");
  for (const auto& [name, has_role] : support::axis_names()) {
    const auto mesh = name + "=2";
    for (const auto& arguments :
         std::vector<std::vector<std::string>>{{"plan", config, "--mesh", mesh},
                                               {"plan", config, "--set", "parallel.mesh=" + mesh},
                                               {"train", config, "--mesh", mesh, "--steps", "1", "--quiet"},
                                               {"compare", config, "--mesh", "1", "--mesh", mesh, "--steps", "1"}}) {
      const auto outcome = call(arguments);
      EXPECT_EQ(outcome.code == 0, has_role) << arguments[0] << " " << outcome.err;
      EXPECT_EQ(has(outcome.err, support::kAcceptedAxes), !has_role) << arguments[0] << " " << outcome.err;
    }
  }
}

TEST_F(Cli, WithoutAMeshRanksCutTheBatch) {
  const auto outcome = call({"train", path("small.toml"), "--ranks", "2", "--steps", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "plan: mesh {dp=2} chosen for 2 ranks, data parallelism first")) << outcome.out;
}

TEST_F(Cli, PlanPrintsWhatTrainReads) {
  const auto printed = call({"plan", path("small.toml")});
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_TRUE(has(printed.out, "\"mesh\": \"dp=2,tp=2\"")) << printed.out;
  std::ofstream(path("plan.json")) << printed.out;
  const auto read = call({"train", path("small.toml"), "--steps", "1", "--set", "parallel.plan=" + path("plan.json")});
  EXPECT_EQ(read.code, 0) << read.err;
  const auto other =
      call({"train", path("small.toml"), "--mesh", "tp=2", "--set", "parallel.plan=" + path("plan.json")});
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(has(other.err, "is for mesh {dp=2,tp=2}, but parallel.mesh is {tp=2}")) << other.err;
}

TEST_F(Cli, TrainReportsAndProves) {
  const auto outcome = call({"train", path("small.toml"), "--numerics", "fast", "--set", "train.proof=true", "--set",
                             "train.log_every=2", "--metrics", path("m.jsonl"), "--ledger", path("l.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"llama of ", "on 4 ranks (dp=2,tp=2)", "step 1/4  loss ", "step 2/4  ", "step 4/4  ",
        "held out after 4 steps  loss ", "proof: first 4 steps on 1 rank and on 4 (dp=2,tp=2)", ": same training\n"}) {
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
  }
  EXPECT_FALSE(has(outcome.out, "step 3/4"));

  const auto metrics = lines("m.jsonl");
  ASSERT_EQ(metrics.size(), 4u);
  for (size_t i = 0; i < metrics.size(); ++i) {
    const auto record = nlohmann::json::parse(metrics[i]);
    EXPECT_EQ(record.at("step"), i + 1);
    EXPECT_EQ(record.at("tokens"), 32);
    EXPECT_GT(record.at("loss").get<double>(), 0);
    EXPECT_GT(record.at("grad_norm").get<double>(), 0);
  }
  std::ifstream file(path("l.json"));
  const auto ledger = nlohmann::json::parse(file);
  EXPECT_EQ(ledger.at("ranks").size(), 4u);
  EXPECT_GT(ledger.at("ranks")[0].at("total_bytes").get<int64_t>(), 0);

  const auto quiet = call({"train", path("small.toml"), "--steps", "1", "--quiet"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.out, "");
}

TEST_F(Cli, ExactTrainingHasTheSameBits) {
  const auto outcome =
      call({"train", path("small.toml"), "--lattice", "batch=4,feature=4", "--set", "train.proof=true"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"in float32 (numerics exact, batch=4,sequence=1,feature=4) on 4 ranks",
                           "largest relative difference of the loss 0.0e+00 (numerics exact): same bits\n"}) {
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
  }
  const auto plan = call({"plan", path("small.toml"), "--mesh", "tp=2"});
  EXPECT_EQ(plan.code, 0) << plan.err;
}

TEST_F(Cli, ALossThatIsNotFiniteNamesTheStep) {
  const auto outcome = call({"train", path("small.toml"), "--set", "train.lr=1e30"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(has(outcome.err, "of step 2 is nan; try a smaller optimizer.lr")) << outcome.err;
}

TEST_F(Cli, ASignalStopsEveryRank) {
  // Once a step is done, so that it is the running job that is stopped.
  std::atomic<bool> is_over = false;
  std::thread interrupt([&] {
    while (!is_over && lines("m.jsonl").empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!is_over) {
      ::kill(::getpid(), SIGINT);
    }
  });
  const auto outcome =
      call({"train", path("small.toml"), "--steps", "100000000", "--quiet", "--metrics", path("m.jsonl")});
  is_over = true;
  interrupt.join();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.err, "tessera: stopped\n");
}

// Stopped on one mesh, gone on with on another: the same lines, but for times.
TEST_F(Cli, ARunGoesOnWhereItsLastCheckpointIs) {
  const auto losses = [&](const std::string& name) {
    std::vector<std::string> all;
    for (const auto& line : lines(name)) {
      const auto json = nlohmann::json::parse(line);
      all.push_back(json.at("step").dump() + " " + json.at("loss").dump() + " " + json.at("grad_norm").dump());
    }
    return all;
  };
  const std::vector<std::string> command = {"train", path("small.toml"), "--steps", "12", "--quiet"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = command;
    all.insert(all.end(), more.begin(), more.end());
    return call(all);
  };
  ASSERT_EQ(with({"--out", path("whole")}).code, 0);
  auto saved = with({"--out", path("run"), "--save-every", "5", "--keep", "1"});
  ASSERT_EQ(saved.code, 0) << saved.err;
  std::filesystem::remove_all(path("run/checkpoints/step_000012"));
  saved = with({"--out", path("other"), "--save-every", "5", "--resume", path("run")});
  EXPECT_EQ(saved.code, 1);
  EXPECT_TRUE(has(saved.err, "no whole checkpoint")) << saved.err;

  saved = with({"--out", path("run"), "--replace", "--save-every", "5"});
  ASSERT_EQ(saved.code, 0) << saved.err;
  EXPECT_TRUE(std::filesystem::exists(path("run/checkpoints/step_000010/manifest.json")));
  EXPECT_FALSE(std::filesystem::exists(path("run/checkpoints/step_000005")));
  std::filesystem::remove_all(path("run/checkpoints/step_000012"));  // as if it had ended at step 11
  const auto resumed = with({"--out", path("run"), "--save-every", "5", "--resume", "auto", "--mesh", "tp=2"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(losses("run/metrics.jsonl"), losses("whole/metrics.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(path("run/checkpoints/step_000012/manifest.json")));

  EXPECT_TRUE(has(with({"--out", path("run")}).err, "--resume auto"));
  EXPECT_TRUE(has(with({"--save-every", "5"}).err, "with --out"));
  EXPECT_TRUE(has(with({"--out", path("run"), "--resume", "auto", "--set", "train.batch=8"}).err, "train.batch"));
}

// The first signal ends a run that is saved after its step, and it goes on as if there had been none.
TEST_F(Cli, ASignalSavesTheStep) {
  std::atomic<bool> is_over = false;
  std::thread interrupt([&] {
    while (!is_over && lines("run/metrics.jsonl").size() < 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (!is_over) {
      ::kill(::getpid(), SIGTERM);
    }
  });
  const std::vector<std::string> command = {"train", path("small.toml"), "--steps", "400", "--save-every", "1000"};
  auto first = command, second = command;
  first.insert(first.end(), {"--out", path("run")});
  const auto stopped = call(first);
  is_over = true;
  interrupt.join();
  ASSERT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_TRUE(has(stopped.out, "is saved; --resume auto goes on there")) << stopped.out;
  const auto steps = lines("run/metrics.jsonl").size();
  EXPECT_LT(steps, 400u);
  second.insert(second.end(), {"--out", path("run"), "--resume", "auto"});
  const auto resumed = call(second);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(has(resumed.out, "goes on after step " + std::to_string(steps))) << resumed.out;
  EXPECT_EQ(lines("run/metrics.jsonl").size(), 400u);
}

TEST_F(Cli, CompareHoldsLayoutsTogether) {
  const auto outcome = call({"compare", path("small.toml"), "--mesh", "1", "--mesh", "dp=2;accumulate=2", "--mesh",
                             "tp=2;sp", "--steps", "3", "--dtype", "float64", "--numerics", "fast", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json.at("reference"), "1");
  EXPECT_EQ(json.at("tolerance"), 1e-12);
  ASSERT_EQ(json.at("sides").size(), 2u);
  EXPECT_EQ(json.at("sides")[1].at("mesh"), "tp=2;sp");
  EXPECT_TRUE(json.at("sides")[1].at("inside").get<bool>());

  const std::vector<std::string> exact = {"compare", path("small.toml"), "--mesh",  "1",
                                          "--mesh",  "dp=2,tp=2",        "--steps", "2"};
  const auto same = call(exact);
  EXPECT_EQ(same.code, 0) << same.err << same.out;
  EXPECT_TRUE(has(same.out, "dp=2,tp=2: same bits\n")) << same.out;
  auto narrow = exact;
  narrow.insert(narrow.end(), {"--dtype", "bfloat16"});
  const auto same_narrow = call(narrow);
  EXPECT_EQ(same_narrow.code, 0) << same_narrow.err << same_narrow.out;
  EXPECT_TRUE(has(same_narrow.out, "dp=2,tp=2: same bits\n")) << same_narrow.out;
  auto with_other_seed = exact;
  with_other_seed.insert(with_other_seed.end(), {"--mesh", "1;train.lr=2e-2", "--json"});
  const auto other = call(with_other_seed);
  EXPECT_EQ(other.code, 1);
  const auto bits = nlohmann::json::parse(other.out);
  EXPECT_TRUE(bits.at("sides")[0].at("same_bits"));
  EXPECT_EQ(bits.at("sides")[1].at("operator").at("phase"), "update");

  const auto seeds = call(
      {"compare", path("small.toml"), "--mesh", "1", "--mesh", "1;train.seed=1", "--steps", "2", "--numerics", "fast"});
  EXPECT_EQ(seeds.code, 1);
  EXPECT_TRUE(has(seeds.out, "1;train.seed=1: OUTSIDE")) << seeds.out;
  EXPECT_TRUE(has(seeds.out, "first difference in step 1 (loss)")) << seeds.out;
}

}  // namespace
}  // namespace tessera::cli::cli_test
