// How far a command is, on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::cli {

// Draws `verify  [#####.....]  52 %  1.3 of 2.5 GiB, 0.6 GiB/s` on stderr, again and again on one line, and wipes it at
// the end. Draws nothing where stderr is no terminal.
class ProgressBar {
 public:
  // `total` bytes; 0: not known.
  ProgressBar(std::string what, int64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // So many more bytes are done.
  void add(int64_t bytes);

  // add(), to be told by others. The bar must outlive it.
  std::function<void(int64_t)> callback() {
    return [this](int64_t bytes) { add(bytes); };
  }

 private:
  using Clock = std::chrono::steady_clock;
  void draw() const;

  const std::string what_;
  const int64_t total_;
  const bool is_shown_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
  int64_t done_ = 0;
};

// The line that ProgressBar draws after `seconds`.
std::string progress_text(const std::string& what, int64_t done, int64_t total, double seconds);

}  // namespace tessera::cli
