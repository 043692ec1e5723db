// How far something is that reads or writes whole checkpoints.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::checkpoint {

// Told of so many more bytes of values that are done; empty: nobody asks.
using Progress = std::function<void(int64_t bytes)>;

inline void tell(const Progress& progress, int64_t bytes) {
  if (progress) {
    progress(bytes);
  }
}

}  // namespace tessera::checkpoint
