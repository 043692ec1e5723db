#include "tessera/data/sampler.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>

#include "tessera/base/error.h"
#include "tessera/random/counter.h"

namespace tessera::data {
namespace {

// Not the dispatcher's `empty`, which inside a parallel region makes DTensors: each rank reads rows of its own.
Batch empty_batch(int64_t count, int64_t length) {
  return {at::Tensor(at::detail::empty_cpu({count, length}, at::kLong)),
          at::Tensor(at::detail::empty_cpu({count, length}, at::kLong))};
}

}  // namespace

Sampler::Sampler(Corpus corpus, const SamplerOptions& options)
    : corpus_(std::move(corpus)),
      seed_(options.seed),
      site_(random::make_site("data.sample").hash),
      length_(options.length),
      vocabulary_(options.vocabulary) {
  TESSERA_CHECK_AS(ConfigError, length_ > 0, "[data] samples of ", length_, " tokens; the length must be positive");
  const auto available = corpus_.train().size();
  TESSERA_CHECK_AS(DataError, available > length_, "[data] \"", corpus_.path(), "\" has ", available, " ",
                   corpus_.unit(), " for training, a sample of ", length_, " tokens needs ", length_ + 1,
                   "; give a longer text, a shorter sequence, or hold out less");
}

// The tokens from `start`, and their successors.
void Sampler::write_row(const Batch& batch, int64_t row, const Tokens& tokens, int64_t start) const {
  int64_t* inputs = batch.tokens.data_ptr<int64_t>() + row * length_;
  int64_t* targets = batch.targets.data_ptr<int64_t>() + row * length_;
  tokens.copy(start, length_, inputs);
  tokens.copy(start + 1, length_, targets);
  const auto largest = std::max(inputs[0], *std::max_element(targets, targets + length_));
  TESSERA_CHECK_AS(DataError, vocabulary_ == 0 || largest < vocabulary_, "[data] \"", corpus_.path(),
                   "\" has the token ", largest, ", the model has ", vocabulary_,
                   "; accepted: model.vocab_size of at least ", largest + 1,
                   ", and data.token_dtype as the file was written");
}

Batch Sampler::rows(int64_t step, int64_t first_sample, int64_t count) const {
  TESSERA_CHECK(step >= 0 && first_sample >= 0 && count >= 0, "[data] rows of step ", step, ", sample ", first_sample,
                ", count ", count, "; none may be negative");
  const random::Stream stream{seed_, site_, static_cast<uint64_t>(step)};
  const int64_t starts = corpus_.train().size() - length_;
  Batch batch = empty_batch(count, length_);
  for (int64_t row = 0; row < count; ++row) {
    write_row(batch, row, corpus_.train(), random::draw_integer(stream, first_sample + row, 0, starts));
  }
  return batch;
}

int64_t Sampler::held_out_count() const { return std::max<int64_t>(corpus_.held_out().size() - 1, 0) / length_; }

Batch Sampler::held_out(int64_t first, int64_t count) const {
  TESSERA_CHECK_AS(DataError, first >= 0 && count >= 0 && first + count <= held_out_count(), "[data] held-out samples ",
                   first, " to ", first + count, " of \"", corpus_.path(), "\"; its ", corpus_.held_out().size(),
                   " held-out ", corpus_.unit(), " hold ", held_out_count(), " samples of ", length_,
                   " tokens: hold out more, ask for fewer, or give a shorter sequence");
  Batch batch = empty_batch(count, length_);
  for (int64_t row = 0; row < count; ++row) {
    write_row(batch, row, corpus_.held_out(), (first + row) * length_);
  }
  return batch;
}

}  // namespace tessera::data
