// Which tokens of a corpus are the samples of a step: a function of seed, step and sample, never of the mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/data/corpus.h"

namespace tessera::data {

// Rows of a batch: plain int64 tensors on the CPU, [rows, length]; targets are the tokens one later.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

struct SamplerOptions {
  uint64_t seed = 0;
  int64_t length = 256;    // tokens of one sample
  int64_t vocabulary = 0;  // ids must be smaller; 0: whatever they are
};

// Cuts samples of one length from a corpus. Every rank reads only the rows it asks for. Immutable; thread-safe.
class Sampler {
 public:
  // Throws DataError if the training tokens do not hold one sample (length + 1 tokens), ConfigError if length < 1.
  Sampler(Corpus corpus, const SamplerOptions& options);

  const Corpus& corpus() const { return corpus_; }
  int64_t length() const { return length_; }

  // The samples first_sample .. first_sample + count - 1 of a step's batch, each from a random place of the training
  // tokens. Throws DataError if a token is not in the vocabulary.
  Batch rows(int64_t step, int64_t first_sample, int64_t count) const;

  // How many whole samples the held-out tokens hold one after the other.
  int64_t held_out_count() const;

  // The samples first .. first + count - 1 of the held-out tokens, in order. Throws DataError beyond held_out_count().
  Batch held_out(int64_t first, int64_t count) const;

 private:
  void write_row(const Batch& batch, int64_t row, const Tokens& tokens, int64_t start) const;

  Corpus corpus_;
  uint64_t seed_;
  uint64_t site_;
  int64_t length_;
  int64_t vocabulary_;
};

}  // namespace tessera::data
