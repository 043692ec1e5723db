// The ranks of one job as processes that a test starts, kills and waits for by itself, without a launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace tessera::launch {

using Variables = std::vector<std::pair<std::string, std::string>>;

class ProcessRanks {
 public:
  // Starts `size` processes of this program that run `body`, with torchrun's variables and these.
  ProcessRanks(int64_t size, const std::string& body, const Variables& variables = {});
  // Kills what is left.
  ~ProcessRanks();
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  void signal(int64_t rank, int number) const;

  // Waits until every rank has written `text`; false after ten seconds.
  bool wait_for(const std::string& text) const;

  // Waits until all have ended; false after `limit`.
  bool wait(std::chrono::milliseconds limit);

  // Of a rank that has ended: its exit code, or 128 + signal.
  int code(int64_t rank) const { return ends_[static_cast<size_t>(rank)].code; }
  // When it ended, from `moment`.
  std::chrono::milliseconds ended_after(int64_t rank, std::chrono::steady_clock::time_point moment) const;

  // Where rank 0 serves the store.
  int port() const { return port_; }

  // What a rank computed, and what it said on stderr.
  std::string output(int64_t rank) const { return text_of("out_", rank); }
  std::string errors(int64_t rank) const { return text_of("err_", rank); }

 private:
  struct End {
    int code = -1;
    std::chrono::steady_clock::time_point when;
  };

  std::string text_of(const std::string& kind, int64_t rank) const;
  void start(int64_t rank, const std::string& body, Variables variables);

  const int port_;
  std::filesystem::path folder_;
  std::vector<pid_t> processes_;
  std::vector<End> ends_;
};

}  // namespace tessera::launch
