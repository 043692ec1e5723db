#include "tessera/base/runs.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::base {
namespace {

using Run = Runs::Run;

constexpr size_t kLongestPattern = 256;  // runs that one look for patterns takes together
constexpr int kDeepest = 64;             // a pattern stands at least twice, so no sequence has deeper ones

int64_t size_of(const std::vector<Run>& runs);

// Numbers of one copy.
int64_t width_of(const Run& run) { return run.pattern.empty() ? 1 : size_of(run.pattern); }

int64_t size_of(const std::vector<Run>& runs) {
  return runs.empty() ? 0 : runs.back().start + runs.back().count * width_of(runs.back());
}

void append(std::vector<Run>& runs, Run run) {
  run.start = size_of(runs);
  runs.push_back(std::move(run));
}

// A run of one number each.
std::vector<Run> single_runs(c10::IntArrayRef values) {
  std::vector<Run> runs;
  for (const auto value : values) {
    append(runs, {.first = value, .count = 1});
  }
  return runs;
}

bool is_single(const Run& run) { return run.count == 1 && run.pattern.empty(); }

// Two single ones that follow each other as one. Not sooner: a pattern may begin with the second.
std::vector<Run> in_pairs(const std::vector<Run>& runs) {
  std::vector<Run> paired;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i + 1 < runs.size() && is_single(runs[i]) && is_single(runs[i + 1])) {
      append(paired, {.first = runs[i].first, .step = runs[i + 1].first - runs[i].first, .count = 2});
      ++i;
    } else {
      append(paired, runs[i]);
    }
  }
  return paired;
}

// Runs that come again from a place on.
struct Repeat {
  size_t runs = 0, times = 0;
  size_t covered() const { return runs * times; }
};

bool is_moved(const Run& from, const Run& to, int64_t by) {
  return to.first - from.first == by && to.step == from.step && to.count == from.count && to.pattern == from.pattern;
}

// The pattern at `at` whose copies reach furthest, of those the shortest; none where it saves nothing.
Repeat repeat_at(const std::vector<Run>& runs, size_t at) {
  Repeat best;
  for (size_t period = 1; period <= kLongestPattern && at + 2 * period <= runs.size(); ++period) {
    if (best.runs > 0 && period % best.runs == 0) {
      continue;  // several copies of it reach no further
    }
    const int64_t by = runs[at + period].first - runs[at].first;
    size_t end = at + period;
    while (end < runs.size() && is_moved(runs[end - period], runs[end], by)) {
      ++end;
    }
    const Repeat found{period, (end - at) / period};
    if (found.times >= 2 && found.covered() > std::max<size_t>(best.covered(), 2)) {
      best = found;
    }
  }
  return best;
}

std::vector<Run> with_patterns(std::vector<Run> runs);

// One look for patterns.
std::vector<Run> fold(const std::vector<Run>& runs) {
  std::vector<Run> folded;
  for (size_t at = 0; at < runs.size();) {
    const Repeat repeat = repeat_at(runs, at);
    if (repeat.times < 2) {
      append(folded, runs[at++]);
      continue;
    }
    std::vector<Run> pattern;
    for (size_t i = at; i < at + repeat.runs; ++i) {
      append(pattern, runs[i]);
      pattern.back().first -= runs[at].first;
    }
    pattern = pattern.size() == 1 && is_single(pattern[0]) ? std::vector<Run>() : with_patterns(std::move(pattern));
    append(folded, {.first = runs[at].first,
                    .step = runs[at + repeat.runs].first - runs[at].first,
                    .count = static_cast<int64_t>(repeat.times),
                    .pattern = std::move(pattern)});
    at += repeat.covered();
  }
  return folded;
}

// Looks again as long as that finds anything: what was folded may be part of a longer pattern.
std::vector<Run> with_patterns(std::vector<Run> runs) {
  while (true) {
    auto folded = fold(runs);
    if (folded.size() == runs.size()) {
      return in_pairs(runs);
    }
    runs = std::move(folded);
  }
}

int64_t value_at(const std::vector<Run>& runs, int64_t index) {
  const auto behind = std::upper_bound(runs.begin(), runs.end(), index,
                                       [](int64_t wanted, const Run& run) { return wanted < run.start; });
  const auto& run = *std::prev(behind);
  const int64_t width = width_of(run), inside = index - run.start;
  return run.first + run.step * (inside / width) + (run.pattern.empty() ? 0 : value_at(run.pattern, inside % width));
}

int64_t index_at_most(const std::vector<Run>& runs, int64_t value) {
  const auto behind = std::upper_bound(runs.begin(), runs.end(), value,
                                       [](int64_t wanted, const Run& run) { return wanted < run.first; });
  if (behind == runs.begin()) {
    return -1;
  }
  const auto& run = *std::prev(behind);
  const int64_t copy = run.step > 0 ? std::min(run.count - 1, (value - run.first) / run.step) : run.count - 1;
  const int64_t inside = run.pattern.empty() ? 0 : index_at_most(run.pattern, value - run.first - copy * run.step);
  return run.start + copy * width_of(run) + inside;
}

struct Extent {
  int64_t least = 0, greatest = 0;
};

// Of the numbers of some runs, of which there is one at least; nothing if one has more than 64 bits.
std::optional<Extent> try_extent(const std::vector<Run>& runs) {
  std::optional<Extent> all;
  for (const auto& run : runs) {
    const auto pattern = run.pattern.empty() ? Extent() : try_extent(run.pattern);
    int64_t last = 0;
    Extent own;
    if (!pattern || __builtin_mul_overflow(run.step, run.count - 1, &last) ||
        __builtin_add_overflow(run.first, last, &last) ||
        __builtin_add_overflow(std::min(run.first, last), pattern->least, &own.least) ||
        __builtin_add_overflow(std::max(run.first, last), pattern->greatest, &own.greatest)) {
      return std::nullopt;
    }
    all = all ? Extent{std::min(all->least, own.least), std::max(all->greatest, own.greatest)} : own;
  }
  return all;
}

Extent extent_of(const std::vector<Run>& runs) {
  const auto extent = try_extent(runs);
  TESSERA_CHECK(extent, "[runs] the least and the greatest of no numbers");
  return *extent;
}

bool ascend(const std::vector<Run>& runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    const int64_t last = run.pattern.empty() ? 0 : value_at(run.pattern, width_of(run) - 1);  // of a copy
    const int64_t end = run.first + run.step * (run.count - 1) + last;
    if ((run.count > 1 && run.step <= last) || !ascend(run.pattern) ||
        (i + 1 < runs.size() && end >= runs[i + 1].first)) {
      return false;
    }
  }
  return true;
}

void flatten(const std::vector<Run>& runs, std::vector<int64_t>& flat) {
  for (const auto& run : runs) {
    flat.insert(flat.end(), {run.first, run.step, run.pattern.empty() ? run.count : -run.count});
    if (!run.pattern.empty()) {
      flat.push_back(static_cast<int64_t>(run.pattern.size()));
      flatten(run.pattern, flat);
    }
  }
}

// Reads runs from their numbers, front to back.
class Reader {
 public:
  explicit Reader(c10::IntArrayRef flat) : flat_(flat) {}

  bool is_at_end() const { return at_ == flat_.size(); }

  // Appends the next run.
  void read(std::vector<Run>& runs, int depth) {
    Run run{.start = size_of(runs), .first = next(), .step = next(), .count = next()};
    if (run.count < 0) {
      TESSERA_CHECK(run.count > INT64_MIN && depth < kDeepest, "[runs] patterns ", depth, " deep of ", run.count,
                    " copies; accepted: patterns that a sequence has");
      run.count = -run.count;
      run.pattern = read_pattern(depth);
    }
    int64_t numbers = 0;
    runs.push_back(std::move(run));
    const auto& last = runs.back();
    TESSERA_CHECK(last.count > 0 && try_extent({last}) &&
                      !__builtin_mul_overflow(width_of(last), last.count, &numbers) &&
                      !__builtin_add_overflow(last.start, numbers, &numbers),
                  "[runs] ", last.count, " times from ", last.first, " by ", last.step,
                  "; accepted: at least one number, and all within 64 bits");
  }

 private:
  int64_t next() {
    TESSERA_CHECK(at_ < flat_.size(), "[runs] the numbers end within a run; accepted: first, step, count of each");
    return flat_[at_++];
  }

  std::vector<Run> read_pattern(int depth) {
    std::vector<Run> pattern;
    for (int64_t left = next(); left > 0; --left) {
      read(pattern, depth + 1);
    }
    TESSERA_CHECK(!pattern.empty() && pattern.front().first == 0,
                  "[runs] a pattern that does not begin with 0; accepted: patterns of runs, from 0");
    return pattern;
  }

  c10::IntArrayRef flat_;
  size_t at_ = 0;
};

}  // namespace

Runs::Runs(c10::IntArrayRef values) : runs_(with_patterns(single_runs(values))) {}

int64_t Runs::size() const { return size_of(runs_); }

int64_t Runs::at(int64_t index) const {
  TESSERA_CHECK(index >= 0 && index < size(), "[runs] number ", index, " of ", size());
  return value_at(runs_, index);
}

int64_t Runs::last_at_most(int64_t value) const { return index_at_most(runs_, value); }

int64_t Runs::least() const { return extent_of(runs_).least; }

int64_t Runs::greatest() const { return extent_of(runs_).greatest; }

bool Runs::ascends() const { return ascend(runs_); }

std::vector<int64_t> Runs::flat() const {
  std::vector<int64_t> flat;
  flatten(runs_, flat);
  return flat;
}

Runs Runs::from_flat(c10::IntArrayRef flat) {
  Runs result;
  for (Reader reader(flat); !reader.is_at_end();) {
    reader.read(result.runs_, 0);
  }
  return result;
}

}  // namespace tessera::base
