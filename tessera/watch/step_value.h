// The value of a DTensor as the whole program sees it, element by element, from what each rank holds: the same on every
// layout.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/layout/spec.h"

namespace tessera::watch {

// Whether the value holds samples of a micro-batch, so that the values of all micro-batches together are the step's.
bool has_samples(const layout::SpecData& spec);

// The sizes of the step's value: all samples of the step where a dim holds those of a micro-batch.
std::vector<int64_t> step_sizes(const layout::SpecData& spec);

// A hash of the step's value from the elements that this rank owns, which is a part of it: the hash of the whole is the
// sum, modulo 2^64, over all ranks and over the micro-batches that hold its samples. Each element adds a mix of its
// row-major index among step_sizes and its bits, all NaN alike; where ranks hold copies the first owns them. The value
// must not wait, and must not be a Partial. No communication; plain tensors are owned by rank 0.
uint64_t hash_value(const at::Tensor& tensor);

// The step's value, filled in by all ranks. Thread-safe.
class StepValue {
 public:
  // Copies the elements that this rank owns. Takes what hash_value takes.
  void add(const at::Tensor& tensor);

  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<uint64_t>& bits() const { return bits_; }  // row-major, all NaN alike

  // The element as a text that reads back to the same bits: 0.100000001.
  std::string text_of(size_t element) const;
  std::vector<int64_t> index_of(size_t element) const;

 private:
  std::mutex mutex_;
  std::vector<int64_t> sizes_;
  std::vector<uint64_t> bits_;
  c10::ScalarType dtype_ = c10::kFloat;
};

}  // namespace tessera::watch
