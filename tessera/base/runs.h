// A sequence of integers in little room where it is regular: numbers at equal distances, and patterns of such numbers
// that come again and again.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace tessera::base {

// 0, 4, 8, 12, 7, 7 is two runs: four numbers from 0 by 4, two from 7 by 0. 0, 5, 5, 9, 14, 14, 18, 23, 23 is one:
// three times the pattern 0, 5, 5, each time 9 further; and patterns may consist of patterns. A value; thread-safe.
class Runs {
 public:
  Runs() = default;

  // Of numbers whose differences fit in 64 bits. In time of their count, and of that of the runs times the length of a
  // pattern.
  explicit Runs(c10::IntArrayRef values);

  int64_t size() const;

  // The number at `index`, in time of the logarithm of the runs; throws if there is none.
  int64_t at(int64_t index) const;

  // Of an ascending sequence: the index of the last number that is at most `value`; -1 if all are more.
  int64_t last_at_most(int64_t value) const;

  // The least and the greatest number; throws where there is none.
  int64_t least() const;
  int64_t greatest() const;

  // Whether each number is greater than the one before.
  bool ascends() const;

  // Of each run first, step, count; of a pattern first, step, -times, how many runs it has, and those, from 0. And
  // back: throws c10::Error for what flat() cannot have given; takes room of the text, whatever it says.
  std::vector<int64_t> flat() const;
  static Runs from_flat(c10::IntArrayRef flat);

  bool operator==(const Runs&) const = default;

  // `count` copies of a pattern, each `step` behind the one before. Without a pattern: of the number 0.
  struct Run {
    int64_t start = 0;  // the index of the first number, in the sequence or the pattern that the run stands in
    int64_t first = 0;  // is added to every number
    int64_t step = 0;
    int64_t count = 0;
    std::vector<Run> pattern = {};
    bool operator==(const Run&) const = default;
  };

 private:
  std::vector<Run> runs_;
};

}  // namespace tessera::base
