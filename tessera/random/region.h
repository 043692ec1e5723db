// Which elements of a global tensor a shard holds, and in which samples of the step they lie.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/FunctionRef.h>

namespace tessera::random {

// The indices begin <= i < end of one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// A shard of a row-major global tensor: along each dim the index ranges that it holds, in local order.
//
// A dim may be held as several ranges (interleaved cuts) or as none. One dim may contain the samples of the batch; its
// size is then (outer, batch_extent, batch_inner) in row-major order, so that a flattened [B*S] is told by
// `batch_inner = S` and may be cut anywhere. An element has a *sample* (its place in the batch, plus `batch_offset`,
// the place of this micro-batch in the step) and an *element* number: its row-major index in the tensor without the
// batch. Without a batch dim the sample is 0. A value; not checked until it is used.
struct Region {
  std::vector<int64_t> sizes;            // of the global tensor (of this micro-batch)
  std::vector<std::vector<Range>> held;  // for each dim
  int64_t batch_dim = -1;                // the dim that contains the samples; -1: none
  int64_t batch_extent = 0;              // samples in it; 0: all that `sizes[batch_dim] / batch_inner` allows
  int64_t batch_inner = 1;               // neighbouring indices of the dim that belong to one sample
  int64_t batch_offset = 0;              // the step's number of the first sample
};

// The region that holds everything.
Region whole_region(std::vector<int64_t> sizes);

// The sizes of the shard's local tensor.
std::vector<int64_t> local_sizes(const Region& region);

// `count` elements that are neighbours both in local memory and inside their sample.
struct ElementRun {
  int64_t sample = 0;
  int64_t element = 0;
  int64_t count = 0;
};

// Calls `visit` for the runs of the shard, in local row-major order, as long as whole trailing dims allow. Throws
// c10::Error if the region contradicts itself or has a sample >= 2^32 or an element >= 2^40.
void for_each_run(const Region& region, c10::function_ref<void(const ElementRun&)> visit);

}  // namespace tessera::random
