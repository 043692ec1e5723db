// What schedules promise at known sizes: how long a step is, how idle, how much is held.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "tessera/schedule/memory.h"
#include "tessera/schedule/replay.h"
#include "tessera/schedule/schedule.h"

namespace tessera::support {

// In unit costs, with peaks in what a micro-batch leaves on all stages of a rank.
struct ScheduleRow {
  const char* name;
  int64_t ranks, micro_batches;
  double makespan, idle;
  std::vector<double> peaks;       // by rank
  bool is_full_in_window = false;  // no rank waits between its first pass and its last
};

inline std::vector<double> on_all(size_t ranks, double peak) { return std::vector<double>(ranks, peak); }

// `count` peaks from `first` down, one micro-batch less on each rank.
inline std::vector<double> falling(size_t count, double first) {
  std::vector<double> peaks;
  for (size_t rank = 0; rank < count; ++rank) {
    peaks.push_back(first - static_cast<double>(rank));
  }
  return peaks;
}

inline std::vector<ScheduleRow> schedule_table() {
  auto v_min_8 = on_all(8, 4);
  v_min_8[0] = 3.5;
  return {
      {"gpipe", 4, 8, 33, 0.2727, on_all(4, 8)},
      {"gpipe", 8, 16, 69, 0.3043, on_all(8, 16)},
      {"1f1b", 4, 8, 33, 0.2727, falling(4, 4)},
      {"1f1b", 8, 16, 69, 0.3043, falling(8, 8)},
      {"interleaved", 4, 8, 28.5, 0.1579, falling(4, 5.5)},
      {"interleaved", 8, 16, 58.5, 0.1795, falling(8, 11.5)},
      {"zb-h1", 4, 8, 27, 0.1111, on_all(4, 4)},
      {"zb-h1", 8, 16, 55, 0.1273, on_all(8, 8)},
      {"zb-h2", 4, 8, 27, 0.1111, on_all(4, 7), true},
      {"zb-h2", 8, 16, 55, 0.1273, on_all(8, 15), true},
      {"1f1b-v", 4, 8, 31.5, 0.2381, on_all(4, 3)},
      {"v-half", 4, 8, 26.5, 0.0943, on_all(4, 3)},
      {"v-half", 8, 16, 56.5, 0.1504, on_all(8, 5)},
      {"v-min", 4, 8, 29.5, 0.1864, on_all(4, 2)},
      {"v-min", 8, 16, 61.5, 0.2195, v_min_8},
      {"zbv", 4, 8, 25.5, 0.0588, on_all(4, 4), true},
      {"zbv", 8, 16, 51.5, 0.0680, on_all(8, 8), true},
      {"dualpipe-v", 4, 8, 25.5, 0.0588, on_all(4, 4.5)},
      {"dualpipe-v", 4, 10, 31.5, 0.0476, on_all(4, 4.5)},
      {"dualpipe-v", 8, 16, 51.5, 0.0680, on_all(8, 8.5)},
      {"dualpipe", 4, 8, 25, 0.04, on_all(4, 5)},
      {"dualpipe", 8, 16, 51, 0.0588, on_all(8, 9)},
  };
}

// By replay of the order of its passes.
inline void expect_figures(const schedule::Schedule& schedule, const ScheduleRow& row) {
  const auto replay = schedule::replay_schedule(schedule);
  EXPECT_EQ(replay.makespan, row.makespan);
  EXPECT_NEAR(replay.idle(), row.idle, 0.00005);
  EXPECT_EQ(schedule::peaks_of(schedule), row.peaks);
  double waits = 0;
  for (int64_t rank = 0; rank < row.ranks; ++rank) {
    waits += replay.idle_in_window(rank);
  }
  EXPECT_EQ(waits == 0, row.is_full_in_window) << waits;
}

}  // namespace tessera::support
