// The local launcher: exit codes, lines, log files, signals, and that nothing is left behind.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/launch/local.h"

namespace tessera::launch::local_test {
namespace {

LocalOptions shell(int64_t ranks, const std::string& script) {
  return {.ranks = ranks, .command = {"/bin/sh", "-c", script}, .grace = std::chrono::milliseconds(300)};
}

// Runs it and catches what it shows.
struct Shown {
  int code;
  std::string out, err;
};
Shown show(const LocalOptions& options) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_local(options);
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Local, SetsTorchrunsVariablesAndPrefixesLines) {
  const auto shown = show(
      shell(3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; printf unended; echo problem >&2"));
  EXPECT_EQ(shown.code, 0);
  EXPECT_EQ(shown.out, "[0] 0 0 3 3 127.0.0.1\n[0] unended\n");
  for (const char* rank : {"[0]", "[1]", "[2]"}) {
    EXPECT_NE(shown.err.find(std::string(rank) + " problem\n"), std::string::npos);
  }
}

TEST(Local, LogRankAndLogDir) {
  const auto folder = std::filesystem::temp_directory_path() / ("tessera_logs_" + std::to_string(::getpid()));
  ::setenv("LOG_RANK", "1", 1);
  auto options = shell(2, "echo out $RANK $LOG_RANK; echo err $RANK >&2; seq 20000");
  options.log_dir = (folder / "a" / "b").string();
  const auto shown = show(options);
  ::unsetenv("LOG_RANK");
  EXPECT_EQ(shown.out.substr(0, 16), "[1] out 1 all\n[1");
  EXPECT_NE(shown.out.find("[1] 20000\n"), std::string::npos);
  for (const std::string rank : {"0", "1"}) {
    const auto log = text_of(folder / "a" / "b" / ("rank_" + rank + ".log"));
    EXPECT_NE(log.find("out " + rank + " all\n"), std::string::npos);
    EXPECT_NE(log.find("err " + rank + "\n"), std::string::npos);
    EXPECT_NE(log.find("\n20000\n"), std::string::npos);
  }
  std::filesystem::remove_all(folder);
}

TEST(Local, TheFirstFailuresCodeAndTheRestEnds) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(show(shell(3, "[ $RANK = 1 ] && exit 7; trap '' TERM; sleep 60 & wait; sleep 60")).code, 7);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  const auto killed = show(shell(2, "[ $RANK = 1 ] && kill -9 $$; sleep 60"));
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_NE(killed.err.find("tessera launch: rank 1 (pid "), std::string::npos) << killed.err;
  EXPECT_NE(killed.err.find("was ended by signal 9 (Killed)"), std::string::npos) << killed.err;
}

TEST(Local, WhatCannotStartSaysSo) {
  EXPECT_THROW(run_local({.ranks = 2, .command = {"/no/such/program"}}), ConfigError);
  EXPECT_THROW(run_local({.ranks = 0, .command = {"/bin/true"}}), ConfigError);
  EXPECT_THROW(run_local({.ranks = 1, .command = {}}), ConfigError);
}

// Runs the launcher in a process of its own, and returns its exit code after `signal`; the ranks are `sleep NUMBER`.
int launcher_after(int signal, const std::string& number) {
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const int code = run_local(shell(3, "exec sleep " + number));
    ::_exit(code);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  ::kill(launcher, signal);
  int status = 0;
  ::waitpid(launcher, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is_running(const std::string& number) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (text_of(entry.path() / "cmdline") == std::string("sleep") + '\0' + number + '\0') {
      return true;
    }
  }
  return false;
}

TEST(Local, SignalsEndEveryRank) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const auto number = std::to_string(100000 + ::getpid() * 10 + signal);
    EXPECT_EQ(launcher_after(signal, number), 128 + signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_FALSE(is_running(number)) << signal;
  }
}

}  // namespace
}  // namespace tessera::launch::local_test
