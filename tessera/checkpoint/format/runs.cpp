#include "tessera/checkpoint/format/runs.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

Runs::Runs(c10::IntArrayRef values) {
  for (const auto value : values) {
    push(value);
  }
}

void Runs::push(int64_t value) {
  if (!runs_.empty()) {
    auto& run = runs_.back();
    if (run.count == 1) {
      run.step = value - run.first;
    }
    if (value == run.first + run.step * run.count) {
      ++run.count;
      return;
    }
  }
  runs_.push_back({.start = size(), .first = value, .step = 0, .count = 1});
}

int64_t Runs::at(int64_t index) const {
  TESSERA_CHECK(index >= 0 && index < size(), "[checkpoint] number ", index, " of ", size());
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), index,
                                       [](int64_t wanted, const Run& run) { return wanted < run.start; });
  const auto& run = *std::prev(behind);
  return run.first + run.step * (index - run.start);
}

int64_t Runs::last_at_most(int64_t value) const {
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), value,
                                       [](int64_t wanted, const Run& run) { return wanted < run.first; });
  if (behind == runs_.begin()) {
    return -1;
  }
  const auto& run = *std::prev(behind);
  const int64_t steps = run.step > 0 ? (value - run.first) / run.step : run.count - 1;
  return run.start + std::min(run.count - 1, steps);
}

int64_t Runs::least() const {
  TESSERA_CHECK(!runs_.empty(), "[checkpoint] the least of no numbers");
  int64_t found = runs_.front().first;
  for (const auto& run : runs_) {
    found = std::min({found, run.first, run.last()});
  }
  return found;
}

int64_t Runs::greatest() const {
  TESSERA_CHECK(!runs_.empty(), "[checkpoint] the greatest of no numbers");
  int64_t found = runs_.front().first;
  for (const auto& run : runs_) {
    found = std::max({found, run.first, run.last()});
  }
  return found;
}

bool Runs::ascends() const {
  for (size_t i = 0; i < runs_.size(); ++i) {
    if ((runs_[i].count > 1 && runs_[i].step <= 0) || (i > 0 && runs_[i - 1].last() >= runs_[i].first)) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> Runs::flat() const {
  std::vector<int64_t> all;
  for (const auto& run : runs_) {
    all.insert(all.end(), {run.first, run.step, run.count});
  }
  return all;
}

Runs Runs::from_flat(c10::IntArrayRef flat) {
  TESSERA_CHECK(flat.size() % 3 == 0, "[checkpoint] runs of ", flat.size(), " numbers; accepted: three for each run");
  Runs result;
  for (size_t i = 0; i < flat.size(); i += 3) {
    int64_t last = 0, end = 0;
    const bool fits = flat[i + 2] > 0 && !__builtin_mul_overflow(flat[i + 1], flat[i + 2] - 1, &last) &&
                      !__builtin_add_overflow(last, flat[i], &last) &&
                      !__builtin_add_overflow(result.size(), flat[i + 2], &end);
    TESSERA_CHECK(fits, "[checkpoint] a run of ", flat[i + 2], " numbers from ", flat[i], " by ", flat[i + 1],
                  "; accepted: at least one, and all within 64 bits");
    result.runs_.push_back({.start = result.size(), .first = flat[i], .step = flat[i + 1], .count = flat[i + 2]});
  }
  return result;
}

}  // namespace tessera::checkpoint
