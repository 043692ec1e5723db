// The list of one rank in the making.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "tessera/schedule/action.h"

namespace tessera::schedule {

// Adds passes stage by stage: every kind of pass of a stage takes the micro-batches in their order, so that nobody need
// count them. A rule that only knows how to fill a pipeline may be followed for more micro-batches than there are:
// those from `micro_batches` on are counted and left out.
class RankPasses {
 public:
  explicit RankPasses(int64_t micro_batches) : micro_batches_(micro_batches) {}

  void forward(int64_t stage);
  void backward(int64_t stage);  // both halves
  void input(int64_t stage);
  // The weight pass that has waited longest of this stage, or of all; nothing if none waits.
  void weight(int64_t stage);
  void weight();
  // All that wait.
  void weights();

  int64_t forwards(int64_t stage) const { return count(forwards_, stage); }
  int64_t backwards(int64_t stage) const { return count(backwards_, stage); }  // full ones and inputs

  // What was added. The object is empty afterwards.
  std::vector<Action> take() { return std::move(actions_); }

 private:
  using Counts = std::map<int64_t, int64_t>;

  static int64_t count(const Counts& counts, int64_t stage) {
    const auto found = counts.find(stage);
    return found == counts.end() ? 0 : found->second;
  }
  void add(ActionKind kind, int64_t stage, int64_t micro_batch);

  int64_t micro_batches_;
  Counts forwards_, backwards_;
  std::deque<std::pair<int64_t, int64_t>> waiting_;  // stage and micro-batch of weight passes
  std::vector<Action> actions_;
};

}  // namespace tessera::schedule
