// The value of a DTensor as the whole program sees it, element by element, from what each rank holds: the same on every
// layout.
#pragma once

#include <array>
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

// The hash of a value, and sums from which the distance between two values is known without either: of its elements,
// each with a sign that its index says. Parts of a value add up to the value's, terms of a sum to the sum's. Of n
// elements the mean of the squares of differences of `sums` is, on average, the square of the distance; of one element
// it is that.
struct Digest {
  static constexpr size_t kSums = 32;

  uint64_t hash = 0;
  uint64_t not_finite = 0;  // a hash of which elements are infinite or NaN; `sums` leave them out
  std::array<double, kSums> sums{};

  Digest& operator+=(const Digest& other);
  // Root of the mean square of `sums`: about the root of the sum of squares of all elements.
  double size() const;
  Digest operator-(const Digest& other) const;
  // The element of a value that has one.
  double one_element() const;
};

// Whether there are digests of such values: elements of up to 8 bytes that are no complex numbers; of Partials those
// that are added.
bool has_digest(const at::Tensor& tensor);

// The digest of the elements that this rank owns. Of a Partial every rank's term counts, and `hash` says nothing. Takes
// what has_digest says; else as hash_value.
Digest digest_value(const at::Tensor& tensor);

// The step's value, filled in by all ranks. Thread-safe.
class StepValue {
 public:
  // Copies the elements that this rank owns; of a Partial adds this rank's term. Takes what hash_value takes, and
  // Partials that are added.
  void add(const at::Tensor& tensor);
  // Elements that another rank had.
  void add(const StepValue& other);

  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<uint64_t>& bits() const { return bits_; }  // row-major, all NaN alike
  // Of all terms that were added; exact where one was.
  double sum_of(size_t element) const { return sums_.at(element); }

  // The element as a text that reads back to the same bits: 0.100000001.
  std::string text_of(size_t element) const;
  std::vector<int64_t> index_of(size_t element) const;

  // Empty without any `add`. Written and read by one version of the library.
  void write(const std::string& path) const;
  // Throws DataError if it is no such file.
  static StepValue read(const std::string& path);

  StepValue() = default;
  StepValue(StepValue&& other) noexcept;

 private:
  void resize(std::vector<int64_t> sizes, c10::ScalarType dtype);

  std::mutex mutex_;
  std::vector<int64_t> sizes_;
  std::vector<uint64_t> bits_;
  std::vector<double> sums_;
  std::vector<uint8_t> terms_;  // how many were added of each element, up to 2
  c10::ScalarType dtype_ = c10::kFloat;
};

}  // namespace tessera::watch
