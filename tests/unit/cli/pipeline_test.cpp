// Pipelines on the command line: schedules are compared, planned, refused, and seen in what ran.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/schedule/families/family.h"
#include "tests/unit/cli/support.h"

namespace tessera::cli::pipeline_test {
namespace {

using nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Pipeline : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tessera_pipeline_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) {
      text << "line " << i << " of a text that repeats itself, line after line.\n";
    }
    std::ofstream(folder_ / "config.toml") << R"([model]
kind = "gpt"
dim = 16
layers = 2
heads = 2
dropout = 0.1
tie_embeddings = true
[data]
file = "text.txt"
sequence = 8
[train]
steps = 4
batch = 8
accumulate = 4
eval_batches = 1
)";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  Outcome on_config(const std::string& command, std::vector<std::string> options) const {
    options.insert(options.begin(), {command, path("config.toml")});
    return call(options);
  }

  // The passes that one rank did in a step, in the order in which they began.
  std::vector<std::string> passes_of(const std::string& trace, int64_t rank) const {
    std::ifstream file(path(trace));
    const json trace_file = json::parse(file);
    std::map<double, std::string> by_time;
    for (const json& event : trace_file.at("traceEvents")) {
      if (event.value("cat", "") == "pass" && event.at("tid") == rank) {
        by_time[event.at("ts")] = event.at("name");
      }
    }
    std::vector<std::string> names;
    for (const auto& [time, name] : by_time) {
      names.push_back(name);
    }
    return names;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(Pipeline, CompareRunsEverySchedule) {
  const auto compared =
      on_config("compare", {"--mesh", "1", "--mesh", "pp=2", "--mesh", "pp=2,tp=2;schedule=1f1b", "--schedule", "gpipe",
                            "--schedule", "interleaved", "--microbatches", "3", "--steps", "2", "--json"});
  EXPECT_EQ(compared.code, 0) << compared.err << compared.out;
  const json parsed = json::parse(compared.out);
  std::vector<std::string> sides;
  for (const json& side : parsed.at("sides")) {
    sides.push_back(side.at("mesh"));
    EXPECT_TRUE(side.at("same_bits")) << sides.back();
  }
  EXPECT_EQ(sides,
            (std::vector<std::string>{"pp=2;schedule=gpipe", "pp=2;schedule=interleaved", "pp=2,tp=2;schedule=1f1b"}));
}

TEST_F(Pipeline, AScheduleSaysNothingWithoutStages) {
  const auto plan = on_config("plan", {"--mesh", "tp=2", "--schedule", "1f1b"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.out, on_config("plan", {"--mesh", "tp=2"}).out);
}

TEST_F(Pipeline, ThePlanSaysItsScheduleAndTrainReadsIt) {
  const auto plan = on_config("plan", {"--mesh", "pp=2", "--schedule", "interleaved"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto parsed = json::parse(plan.out);
  EXPECT_EQ(parsed.at("schedule"), "interleaved");
  EXPECT_EQ(parsed.at("stages_per_rank"), 2);
  EXPECT_TRUE(has(plan.out, "\"stage 3 (rank 1): ")) << plan.out;
  const std::vector<std::string> chosen = {"--mesh", "pp=2",  "--steps",
                                           "1",      "--set", "parallel.plan=" + path("plan.json")};
  std::ofstream(path("plan.json")) << plan.out;
  const auto trained = on_config("train", chosen);
  EXPECT_EQ(trained.code, 0) << trained.err;

  std::string wanting = plan.out;
  wanting.replace(wanting.find("interleaved"), 11, "dualpipe-v");
  std::ofstream(path("plan.json")) << wanting;
  auto too_few = chosen;
  too_few.insert(too_few.end(), {"--microbatches", "2"});
  const auto refused = on_config("train", too_few);
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(has(refused.err, "dualpipe-v of 2 micro-batches on 2 ranks")) << refused.err;
  const auto twice = on_config("plan", {"--mesh", "pp=2", "--schedule", "dualpipe"});
  EXPECT_EQ(twice.code, 1);
  EXPECT_TRUE(has(twice.err, "schedule dualpipe holds every stage twice; accepted: ")) << twice.err;
}

TEST_F(Pipeline, AStageMayBeEmpty) {
  const auto plan = on_config("plan", {"--mesh", "pp=4", "--schedule", "interleaved"});
  EXPECT_TRUE(has(plan.out, "is empty: the model has ")) << plan.out << plan.err;
  const auto compared = on_config(
      "compare", {"--mesh", "1", "--mesh", "pp=4", "--schedule", "1f1b", "--schedule", "interleaved", "--steps", "2"});
  EXPECT_EQ(compared.code, 0) << compared.err << compared.out;
}

TEST_F(Pipeline, WhatRanInAStepIsTheSchedule) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "v-half", "dualpipe-v"}) {
    SCOPED_TRACE(name);
    const auto trained = on_config("train", {"--mesh", "pp=2", "--schedule", name, "--steps", "2", "--quiet", "--out",
                                             path("run"), "--replace", "--profile", "2"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    const auto made = schedule::make_schedule(name, {.ranks = 2, .micro_batches = 4});
    for (int64_t rank = 0; rank < 2; ++rank) {
      std::vector<std::string> actions;
      for (const schedule::Action& action : made.ranks[static_cast<size_t>(rank)]) {
        actions.push_back(to_string(action));
      }
      EXPECT_EQ(passes_of("run/trace/steps_2-2.json", rank), actions);
    }
  }
}

}  // namespace
}  // namespace tessera::cli::pipeline_test
