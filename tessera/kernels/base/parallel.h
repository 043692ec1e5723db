// Loops over independent items on torch's threads. Never over the items of a sum: threads must not enter any result.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/threads.h"

namespace tessera::kernels {

namespace detail {
using RangeBody = void (*)(const void* context, int64_t begin, int64_t end);
void run_parallel(int64_t count, int64_t grain, RangeBody body, const void* context);
}  // namespace detail

// Calls body(begin, end) for disjoint ranges that together are [0, count), on up to thread_count() threads, each range
// (but the last) of at least `grain` items. Every call runs in the FloatEnvironment. Returns when all have; the first
// exception of a body is thrown again. No call for count 0.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  detail::run_parallel(
      count, grain,
      [](const void* context, int64_t begin, int64_t end) { (*static_cast<const Body*>(context))(begin, end); }, &body);
}

}  // namespace tessera::kernels
