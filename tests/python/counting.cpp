// Bytes of each rank's CPU tensors, for Python tests by ctypes. Counts from when it is loaded.
#include <cstdint>

#include "tests/support/counting_allocator.h"

namespace {

[[maybe_unused]] const bool is_counting = [] {
  tessera::support::count_allocations();
  return true;
}();

}  // namespace

extern "C" {
int64_t live_bytes(int64_t rank) { return tessera::support::bytes_of(rank).live; }
int64_t peak_bytes(int64_t rank) { return tessera::support::bytes_of(rank).peak; }
void reset_peak_bytes(int64_t rank) { tessera::support::reset_peak(rank); }
}
