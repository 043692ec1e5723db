// The `stock` generator on the CPU: libtorch's own random bits, of which a rank keeps the part that it holds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "tessera/random/region.h"

namespace tessera::random {

// A generator as a value: a copy draws on its own, an assignment takes over the other's state and leaves the handle
// that users hold what it is. Empty by default: the rank does not use libtorch's bits.
class StockGenerator {
 public:
  StockGenerator() = default;
  explicit StockGenerator(uint64_t seed);
  StockGenerator(const StockGenerator& other);
  StockGenerator& operator=(const StockGenerator& other);
  ~StockGenerator() = default;

  explicit operator bool() const { return handle_.defined(); }
  at::Generator& handle() { return handle_; }

  // A hash of the place in the stream: ranks that walked alike have the same.
  uint64_t mark() const;

 private:
  at::Generator handle_;
};

// How a kernel of libtorch fills a tensor, and whether contiguous tensors of 16 elements and more are made in blocks of
// 16, of which a ragged last one is drawn again (true of `normal_` alone).
struct StockDraw {
  std::function<void(at::Tensor& target, const at::Generator& generator)> fill;
  bool in_blocks = false;
};

// A tensor of the one-device program.
struct StockTensor {
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Fills `local`, the part of `tensor` at `held` (one range for each dim), with what `draw` gives it on one device, and
// leaves the generator where that leaves it, whatever part is held.
//
// libtorch's own kernels draw, on short pieces of the stream, so the bits are those of the kernels for this processor;
// what lies between the pieces is skipped. How many words an element takes is measured on tensors of one to three
// elements. A kernel that does not take the stream piece by piece (those that seed a generator of MKL on Intel
// processors) draws the whole tensor on every rank. Not thread-safe on one generator.
void fill_stock(at::Tensor& local, const StockTensor& tensor, const std::vector<Range>& held, const StockDraw& draw,
                at::Generator& generator);

// Leaves the generator where drawing the tensor would.
void skip_stock(const StockTensor& tensor, const StockDraw& draw, at::Generator& generator);

}  // namespace tessera::random
