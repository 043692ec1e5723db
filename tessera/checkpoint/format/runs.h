// A sequence of integers in little room where many lie at equal distances.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace tessera::checkpoint {

// 0, 4, 8, 12, 7, 7 as two runs: four numbers from 0 by 4, two from 7 by 0. A value; thread-safe.
class Runs {
 public:
  Runs() = default;
  explicit Runs(c10::IntArrayRef values);

  // Appends a number.
  void push(int64_t value);

  int64_t size() const { return runs_.empty() ? 0 : runs_.back().start + runs_.back().count; }

  // The number at `index`, in time of the logarithm of the runs; throws if there is none.
  int64_t at(int64_t index) const;

  // Of an ascending sequence: the index of the last number that is at most `value`; -1 if all are more.
  int64_t last_at_most(int64_t value) const;

  // The least and the greatest number; throws where there is none.
  int64_t least() const;
  int64_t greatest() const;

  // Whether each number is greater than the one before.
  bool ascends() const;

  // first, step, count of each run; and back: throws c10::Error for what flat() cannot have given.
  std::vector<int64_t> flat() const;
  static Runs from_flat(c10::IntArrayRef flat);

  bool operator==(const Runs&) const = default;

 private:
  struct Run {
    int64_t start = 0;  // the index of the first number
    int64_t first = 0;
    int64_t step = 0;
    int64_t count = 0;
    int64_t last() const { return first + step * (count - 1); }
    bool operator==(const Run&) const = default;
  };

  std::vector<Run> runs_;
};

}  // namespace tessera::checkpoint
