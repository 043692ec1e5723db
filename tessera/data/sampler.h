// Which bytes of a text are the samples of a step: a function of seed, step and sample, never of the mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/data/text.h"

namespace tessera::data {

// Rows of a batch: plain int64 tensors on the CPU, [rows, length]; targets are the tokens one byte later.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t length = 256;  // tokens of one sample
};

// Cuts samples of one length from a text. Every rank reads only the rows it asks for. Immutable; thread-safe.
class Sampler {
 public:
  // Throws DataError if the training bytes do not hold one sample (length + 1 bytes), ConfigError if length < 1.
  Sampler(Text text, const SamplerOptions& options);

  const Text& text() const { return text_; }
  int64_t length() const { return length_; }

  // The samples first_sample .. first_sample + count - 1 of a step's batch, each from a random place of the training bytes.
  Batch rows(int64_t step, int64_t first_sample, int64_t count) const;

  // How many whole samples the held-out bytes hold one after the other.
  int64_t held_out_count() const;

  // The samples first .. first + count - 1 of the held-out bytes, in order. Throws DataError beyond held_out_count().
  Batch held_out(int64_t first, int64_t count) const;

 private:
  Text text_;
  uint64_t seed_;
  uint64_t site_;
  int64_t length_;
};

}  // namespace tessera::data
