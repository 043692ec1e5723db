// Indexed reads and writes of a dim of which this rank holds a run only.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/rule.h"

namespace tessera::rules {

// Indices into a dim as the holder of one run of it sees them.
struct Window {
  at::Tensor index;    // counted from the run's begin; `elsewhere` for those outside of it
  at::Tensor outside;  // which are outside
};

// `index` into a dim of `size` (negative ones count from its end) for the holder of `range`. On the CPU, throws if an
// index is out of bounds: the ranks that do not own it would not notice.
Window make_window(const at::Tensor& index, layout::Range range, int64_t size, int64_t elsewhere);

// `self` with one more element at the end of each of `dims`, where writes that belong to others go; and without it
// again.
at::Tensor with_spare(const at::Tensor& self, const std::vector<int64_t>& dims);
at::Tensor without_spare(at::Tensor padded, const std::vector<int64_t>& dims);

// The sizes of ranges.
std::vector<int64_t> sizes_of(const std::vector<layout::Range>& ranges);

}  // namespace tessera::rules
