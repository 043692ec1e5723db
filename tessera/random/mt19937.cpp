#include "tessera/random/mt19937.h"

#include <algorithm>

namespace tessera::random {

namespace {

constexpr int kWords = at::MERSENNE_STATE_N;
constexpr int kAhead = at::MERSENNE_STATE_M;

uint32_t twist(uint32_t high, uint32_t low) {
  const uint32_t mixed = (high & 0x80000000) | (low & 0x7fffffff);
  return (mixed >> 1) ^ ((0 - (low & 1)) & 0x9908b0df);
}

void next_block(uint32_t* state) {
  for (int i = 0; i < kWords - kAhead; ++i) {
    state[i] = state[i + kAhead] ^ twist(state[i], state[i + 1]);
  }
  constexpr int kBack = kWords - kAhead;
  for (int i = kBack; i < kWords - 1; ++i) {
    state[i] = state[i - kBack] ^ twist(state[i], state[i + 1]);
  }
  state[kWords - 1] = state[kAhead - 1] ^ twist(state[kWords - 1], state[0]);
}

}  // namespace

// The engine makes the next block when a word of it is asked for: `left_` counts down to that, `next_` up from the
// block's start.
void skip(at::mt19937& engine, uint64_t words) {
  at::mt19937_data_pod data = engine.data();
  const auto at_hand = static_cast<uint64_t>(data.left_ - 1);
  const uint64_t here = std::min(words, at_hand);
  data.left_ -= static_cast<int>(here);
  data.next_ += static_cast<uint32_t>(here);
  for (words -= here; words > 0;) {
    next_block(data.state_.data());
    const auto taken = static_cast<int>(std::min<uint64_t>(words, kWords));
    words -= static_cast<uint64_t>(taken);
    data.left_ = kWords + 1 - taken;
    data.next_ = static_cast<uint32_t>(taken);
  }
  engine.set_data(data);
}

}  // namespace tessera::random
