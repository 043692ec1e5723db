// `tessera schedule`: what it prints and writes, of names and of files.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tests/unit/cli/support.h"

namespace tessera::cli::schedule_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class CliSchedule : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tessera_cli_schedule_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string content(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(CliSchedule, ReplaySaysTimesAndPeaks) {
  const auto outcome =
      call({"schedule", "replay", "zbv", "--stages", "4", "--microbatches", "8", "--costs", "F=1,B=1,W=1,send=0"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out,
                  "zbv: 8 micro-batches through 8 stages on 4 ranks\nmakespan 25.5, idle 0.0588\n"
                  "rank  busy  idle in its window  peak\n   0    24                   0     4\n"))
      << outcome.out;
  const auto json = nlohmann::json::parse(call({"schedule", "replay", "1f1b", "--json"}).out);
  EXPECT_EQ(json.at("makespan"), 33);
  EXPECT_EQ(json.at("ranks").at(3).at("peak"), 1);
  EXPECT_TRUE(has(call({"schedule", "replay", "1f1b", "--costs", "G=1"}).err, "accepted: a name of F, B, W, send"));
}

TEST_F(CliSchedule, ShowDrawsAndWrites) {
  const auto outcome = call({"schedule", "show", "gpipe", "--stages", "2", "--microbatches", "2", "--svg",
                             path("g.svg"), "--trace", path("g.json")});
  EXPECT_EQ(outcome.out,
            "gpipe: 2 micro-batches through 2 stages on 2 ranks, 9 long, 33.3% idle\n"
            "rank 0 |F0 F1          B0--- B1---\n"
            "rank 1 |   F0 F1 B0--- B1---\n")
      << outcome.err;
  EXPECT_TRUE(content("g.svg").starts_with("<svg "));
  EXPECT_EQ(nlohmann::json::parse(content("g.json")).at("traceEvents").size(), 2u + 8);
  EXPECT_TRUE(has(call({"schedule", "show", "gpipe", "--svg", path("none/g.svg")}).err, "none/g.svg"));
}

TEST_F(CliSchedule, FilesOfRowsAreReadAndVerified) {
  const auto rows =
      call({"schedule", "show", "1f1b", "--stages", "2", "--microbatches", "2", "--csv", "--communication"});
  EXPECT_EQ(rows.out,
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  std::ofstream(path("rows.csv")) << rows.out;
  EXPECT_TRUE(has(call({"schedule", "verify", path("rows.csv")}).out,
                  "2 micro-batches through 2 stages on 2 ranks, every gradient once; ranks come to an end with 2 "
                  "buffers and hold at most 2 micro-batches"));
  EXPECT_EQ(call({"schedule", "verify", path("rows.csv"), "--peak", "1"}).code, 1);
  std::ofstream(path("wrong.csv")) << "0B0,0F0\n1F0,1B0\n";
  const auto wrong = call({"schedule", "verify", path("wrong.csv")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "[schedule] rank 0, action 0 (0B0): it needs the output of stage 0")) << wrong.err;
  EXPECT_TRUE(has(call({"schedule", "verify", path("rows.csv"), "--stages", "2"}).err, "no --stages"));
}

TEST_F(CliSchedule, EmbeddingAndHeadAreCutOverRanks) {
  const auto shown = call({"schedule", "show", "1f1b", "--stages", "2", "--microbatches", "1", "--vocabulary", "1",
                           "--costs", "S=1,T=1,E=1"});
  EXPECT_TRUE(has(shown.out, "rank 0 |E0 F0    S0 T0")) << shown.out << shown.err;
  const auto json = nlohmann::json::parse(call({"schedule", "replay", "1f1b", "--vocabulary", "2", "--json"}).out);
  EXPECT_EQ(json.at("ranks").at(0).at("peak"), 6);
  EXPECT_EQ(json.at("makespan"), 30);
  EXPECT_TRUE(has(call({"schedule", "verify", "zbv", "--vocabulary", "1"}).err, "1 barriers; accepted: 0"));
  EXPECT_EQ(call({"schedule", "verify", "1f1b", "--vocabulary", "3"}).code, 2);
}

TEST_F(CliSchedule, WhatThereIsNotIsRefused) {
  const auto wrong = call({"schedule", "verify", "zbvv"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "accepted: a file of rows, or gpipe, 1f1b, ") && has(wrong.err, "did you mean \"zbv\"?"))
      << wrong.err;
  EXPECT_TRUE(has(call({"schedule", "verify", "dualpipe-v", "--microbatches", "7"}).err, "accepted: 8 micro-batches"));
  EXPECT_EQ(call({"schedule", "show", "1f1b", "--stages", "0"}).code, 2);
  EXPECT_EQ(call({"schedule"}).code, 2);
}

}  // namespace
}  // namespace tessera::cli::schedule_test
