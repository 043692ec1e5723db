// Moving along the stream of libtorch's CPU generator without drawing from it.
#pragma once

#include <cstdint>

#include <ATen/core/MT19937RNGEngine.h>

namespace tessera::random {

// Leaves the engine where `words` 32-bit draws would leave it, to the last bit of its state. Blocks of 624 words are
// made again but not tempered: docs/measured/random.md has the cost of a word.
void skip(at::mt19937& engine, uint64_t words);

}  // namespace tessera::random
