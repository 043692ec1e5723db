#include "tessera/cli/progress_bar.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include "tessera/base/text.h"

namespace tessera::cli {
namespace {

constexpr int64_t kCells = 30;
constexpr std::chrono::milliseconds kPause(100);
constexpr const char* kWipe = "\r\033[K";

}  // namespace

std::string progress_text(const std::string& what, int64_t done, int64_t total, double seconds) {
  std::string text = what;
  if (total > 0) {
    const auto share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const auto cells = static_cast<size_t>(share * kCells);
    text += "  [" + std::string(cells, '#') + std::string(kCells - cells, '.') + "]  " +
            std::to_string(static_cast<int64_t>(share * 100)) + " %  " + base::human_bytes(done) + " of " +
            base::human_bytes(total);
  } else {
    text += "  " + base::human_bytes(done);
  }
  if (seconds > 0) {
    text += ", " + base::human_bytes(static_cast<int64_t>(static_cast<double>(done) / seconds)) + "/s";
  }
  return text;
}

ProgressBar::ProgressBar(std::string what, int64_t total)
    : what_(std::move(what)), total_(total), is_shown_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_shown_) {
    std::fputs(kWipe, stderr);
    std::fflush(stderr);
  }
}

void ProgressBar::add(int64_t bytes) {
  done_ += bytes;
  if (is_shown_ && Clock::now() - drawn_ >= kPause) {
    drawn_ = Clock::now();
    draw();
  }
}

void ProgressBar::draw() const {
  const auto seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  std::fputs((kWipe + progress_text(what_, done_, total_, seconds)).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace tessera::cli
