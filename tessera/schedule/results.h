// What actions leave behind and what they need: the one place that knows how passes depend on each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

enum class ResultKind : uint8_t {
  kOutput,          // of F
  kInputGradient,   // of B and I
  kWeightGradient,  // of B and W
  kRecomputed,
  kHead,
  kHeadGradient,
  kEmbedded,
  kEmbedGradient,
};

constexpr int64_t kResultKinds = static_cast<int64_t>(ResultKind::kEmbedGradient) + 1;

struct Result {
  ResultKind kind;
  int64_t stage, micro_batch;  // of the vocabulary: the rank whose part it is

  friend bool operator==(const Result&, const Result&) = default;
};

using Results = c10::SmallVector<Result, 4>;

// What the action makes; sends, receives, gathers and the like make nothing.
Results results_of(const Action& action);

// What must be there before the action begins: of a pass, what other passes made; of a send, what it sends; of a
// receive, what is sent to it; of REDUCE_GRAD every weight gradient of its stage. The stage must be one of the
// schedule's. A pass of the last stage's backward, and the parts of the head, need all ranks': these are the barriers.
Results needs_of(const Schedule& schedule, const Action& action);

// Of a pass of the head in whose sums over the vocabulary ranks meet (HEAD_F, and with two barriers HEAD_B): what it
// makes on all ranks. None of them goes on before all have come. Empty of all else.
Results met_by(const Schedule& schedule, const Action& action);

// The rank that makes it.
int64_t maker_of(const Schedule& schedule, const Result& result);

// Something for each result of a schedule. Its keys are results of its stages, ranks and micro-batches.
template <typename T>
class ResultTable {
 public:
  ResultTable(const Schedule& schedule, T initial)
      : rows_(std::max(schedule.num_stages(), schedule.num_ranks())),
        columns_(schedule.micro_batches),
        values_(static_cast<size_t>(kResultKinds * rows_ * columns_), initial) {}

  T& operator[](const Result& key) {
    return values_[static_cast<size_t>((static_cast<int64_t>(key.kind) * rows_ + key.stage) * columns_ +
                                       key.micro_batch)];
  }

 private:
  int64_t rows_, columns_;
  std::vector<T> values_;
};

}  // namespace tessera::schedule
