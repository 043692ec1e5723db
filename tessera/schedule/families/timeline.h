// A V schedule on a grid of unit slots: one micro-batch's block repeated, then drawn together without holding more.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// When a rank begins the four passes of micro-batch 0: forward on the way away from rank 0, forward on the way back,
// then the backward of the latter and of the former. Micro-batch k is kBlockSlots slots later for each one before it,
// so the slots of a block must differ modulo that.
using Block = std::array<int64_t, 4>;

constexpr int64_t kBlockSlots = 6;  // two stages' F, I and W

// Backwards either take two slots (input and weight in one), or one, and their weight passes go to free slots behind.
// "Pipeline Parallelism with Controllable Memory" (Qi et al. 2024) gives the steps: repeat, squeeze, reorder.
class Timeline {
 public:
  enum class Weights : uint8_t { kWithInput, kApart };
  enum class Part : uint8_t {
    kAll,
    kEnds,  // before rank 0's first gradient has come all the way back, and from its last first forward on
    kEnd,   // the latter
  };

  Timeline(const std::vector<Block>& blocks, int64_t micro_batches, Weights weights);

  // Moves passes to earlier free slots, in the order in which they stand, as far as what they need is there and no rank
  // holds more than any did before. Passes outside of `part` stay. Weight passes have places of their own, and move,
  // only once place_weights was called; until then each is counted where it would be placed.
  void compact(Part part);

  // Gives each weight pass the first free slot behind its input; drops their places.
  void place_weights();
  void drop_weights();

  // Begins every pass as soon as its rank has done what stands before it and what it needs is there.
  void squeeze();

  // The passes in their order. Weight passes come in the order of their inputs.
  Schedule schedule() const;

 private:
  static constexpr size_t kWeightRow = 4;
  using Rows = std::array<std::vector<int64_t>, kWeightRow + 1>;  // slots by kind of pass and micro-batch

  struct Pass {
    int64_t slot, rank;
    size_t row, index;

    friend auto operator<=>(const Pass&, const Pass&) = default;
  };

  int64_t num_ranks() const { return static_cast<int64_t>(ranks_.size()); }
  const Rows& rows(int64_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  Rows& rows(int64_t rank) { return ranks_[static_cast<size_t>(rank)]; }
  int64_t length(size_t row) const { return weights_ == Weights::kWithInput && (row == 2 || row == 3) ? 2 : 1; }

  std::vector<Pass> passes_of(int64_t rank) const;  // in their order
  std::vector<Pass> all_passes() const;             // in their order
  int64_t end_of_need(const Pass& pass) const;      // the first slot in which what the pass needs is there
  std::vector<int64_t> weight_slots(const Rows& rows) const;
  int64_t peak_of(const Rows& rows) const;
  int64_t first_fit(Pass pass, int64_t most, const std::set<int64_t>& taken);

  Weights weights_;
  int64_t micro_batches_;
  std::vector<Rows> ranks_;
};

}  // namespace tessera::schedule
