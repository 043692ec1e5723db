// The tree of a sum whose terms come one by one. Internal to this floor.
#pragma once

#include <cstdint>

namespace tessera::kernels {
namespace {  // a copy for each source: some are compiled for one instruction set only

// The tree over values given one by one: a binary counter of the subtrees that are complete.
// T may hold several sums at once. The root of [lo, hi) splits at lo + the largest power of two below hi - lo.
template <typename T>
class TreeSum {
 public:
  void add(T value) {
    int level = 0;
    for (int64_t bits = count_++; bits & 1; bits >>= 1) {
      value = waiting_[level++] + value;
    }
    waiting_[level] = value;
  }

  // +0 if nothing was added.
  T root() const {
    if (count_ == 0) {
      return T{};
    }
    T value = waiting_[__builtin_ctzll(static_cast<uint64_t>(count_))];
    for (int64_t rest = count_ & (count_ - 1); rest != 0; rest &= rest - 1) {
      value = waiting_[__builtin_ctzll(static_cast<uint64_t>(rest))] + value;
    }
    return value;
  }

 private:
  int64_t count_ = 0;
  T waiting_[64];
};

}  // namespace
}  // namespace tessera::kernels
