// The `counter` generator: random values that are functions of where they stand in the global program, not of the
// layout.
//
// value = f(seed, site, step, sample, element). No state, no order: a shard, a micro-batch, a recomputation or another
// schedule meets the same values. This packing is frozen; stored runs depend on it:
//   key      two words of hash_combine(hash_mix(seed), site)
//   counter  {block low 32 bits, block high bits, sample, step}
// where a block serves 4 neighbouring elements that need one word each, or 2 that need two (doubles, wide integers).
// Limits: elements of one sample 2^40, samples of one step 2^32, steps 2^32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/random/distribution.h"
#include "tessera/random/philox.h"
#include "tessera/random/region.h"

namespace tessera::random {

// A place of the program that draws random values: equal names are equal sites, on every rank and in every run.
struct Site {
  uint64_t hash = 0;
  std::string name;  // for messages, such as "layers.0.wq.weight#0+1"
};

// The site of that name.
Site make_site(std::string_view name);

// Everything that chooses values apart from the position in the tensor.
struct Stream {
  uint64_t seed = 0;
  uint64_t site = 0;  // Site::hash
  uint64_t step = 0;
};

// Fills a shard's local tensor: plain, contiguous, on the CPU or a GPU (made on the CPU and copied), of sizes
// local_sizes(region).
//
// Uniform, Normal, Exponential, LogNormal and Cauchy take float64, float32, float16 and bfloat16 (16-bit: the float32
// value rounded); Uniform and Normal also complex dtypes, whose parts are drawn one after the other, each of a Normal's
// with half of its variance; Bernoulli, Integers and Geometric also take int64, int32, int16, int8, uint8 and bool. A
// Bernoulli with a probability for each element is a float32 Uniform compared with `<`. Work is O(local). Throws
// c10::Error on anything else. Thread-safe.
void fill(at::Tensor& local, const Region& region, const Stream& stream, const Distribution& distribution);

// Writes the permutation of 0..n-1 that sorts n 64-bit draws of the stream; `out` is a plain int64 tensor of n
// elements.
void fill_permutation(at::Tensor& out, const Stream& stream);

// One integer in [0, range) for (sample, element) of the stream; `range` must be positive.
int64_t draw_integer(const Stream& stream, int64_t sample, int64_t element, int64_t range);

}  // namespace tessera::random
