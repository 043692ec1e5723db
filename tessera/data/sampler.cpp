#include "tessera/data/sampler.h"

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

// Writes one row of a batch: `length` tokens from `start` and their successors.
void write_row(const Batch& batch, int64_t row, int64_t length, const uint8_t* start) {
  std::copy(start, start + length, batch.tokens.data_ptr<int64_t>() + row * length);
  std::copy(start + 1, start + 1 + length, batch.targets.data_ptr<int64_t>() + row * length);
}

}  // namespace

Sampler::Sampler(Text text, const SamplerOptions& options)
    : text_(std::move(text)), seed_(options.seed), site_(random::make_site("data.sample").hash), length_(options.length) {
  TESSERA_CHECK_AS(ConfigError, length_ > 0, "[data] samples of ", length_, " tokens; the length must be positive");
  const auto available = static_cast<int64_t>(text_.train().size());
  TESSERA_CHECK_AS(DataError, available > length_, "[data] \"", text_.path(), "\" has ", available,
                   " bytes for training, a sample of ", length_, " tokens needs ", length_ + 1,
                   "; give a longer text, a shorter sequence, or hold out less");
}

Batch Sampler::rows(int64_t step, int64_t first_sample, int64_t count) const {
  TESSERA_CHECK(step >= 0 && first_sample >= 0 && count >= 0, "[data] rows of step ", step, ", sample ", first_sample,
                ", count ", count, "; none may be negative");
  const random::Stream stream{seed_, site_, static_cast<uint64_t>(step)};
  const std::span<const uint8_t> bytes = text_.train();
  const int64_t starts = static_cast<int64_t>(bytes.size()) - length_;
  Batch batch = empty_batch(count, length_);
  for (int64_t row = 0; row < count; ++row) {
    write_row(batch, row, length_, bytes.data() + random::draw_integer(stream, first_sample + row, 0, starts));
  }
  return batch;
}

int64_t Sampler::held_out_count() const {
  return std::max<int64_t>(static_cast<int64_t>(text_.held_out().size()) - 1, 0) / length_;
}

Batch Sampler::held_out(int64_t first, int64_t count) const {
  TESSERA_CHECK_AS(DataError, first >= 0 && count >= 0 && first + count <= held_out_count(), "[data] held-out samples ",
                   first, " to ", first + count, " of \"", text_.path(), "\"; its ", text_.held_out().size(),
                   " held-out bytes hold ", held_out_count(), " samples of ", length_,
                   " tokens: hold out more, ask for fewer, or give a shorter sequence");
  Batch batch = empty_batch(count, length_);
  for (int64_t row = 0; row < count; ++row) {
    write_row(batch, row, length_, text_.held_out().data() + (first + row) * length_);
  }
  return batch;
}

}  // namespace tessera::data
