// What makes a call more than finding its plan and running it.
#pragma once

#include <cstdint>

namespace tessera::dtensor {

// Bits that the scan of a call's operands and its rank set. A call with none of kSlow takes the short way.
enum CallFlag : uint32_t {
  kPlain = 1 << 0,          // an operand is no DTensor
  kPlainReading = 1 << 1,   // ... beside a parameter
  kDeferred = 1 << 2,       // an operand has no layout yet: a constructor is recorded
  kDerived = 1 << 3,        // an operand is a view that may have to be made again
  kPending = 1 << 4,        // an operand is a gradient that waits
  kUnfinished = 1 << 5,     // an operand lacks samples of the step
  kElsewhere = 1 << 6,      // an operand is On one coordinate of an axis
  kGathered = 1 << 7,       // an operand is a parameter that operators of a model gather
  kNoRank = 1 << 8,         // the thread is no rank's
  kObserved = 1 << 9,       // the rank has an OpObserver
  kChecksPlain = 1 << 10,   // ... compares plain operands across ranks
  kExact = 1 << 11,         // ... has numerics exact
  kAsksForMoves = 1 << 12,  // ... is not in Mode::kImplicit
  kInBody = 1 << 13,        // ... runs a body whose results are kept for its second run, or go elsewhere
  kOfVocabulary = 1 << 14   // ... walks a part of the vocabulary
};
constexpr uint32_t kSlow = ~uint32_t{kPlain | kElsewhere};

// What a rank adds to every call. Its parts set their own bits.
class RankFlags {
 public:
  uint32_t bits() const { return bits_; }
  bool has(CallFlag flag) const { return bits_ & flag; }
  void set(CallFlag flag, bool on) { bits_ = on ? bits_ | flag : bits_ & ~uint32_t{flag}; }

 private:
  uint32_t bits_ = 0;
};

}  // namespace tessera::dtensor
