// Counts instead of times: the same on every machine of one kind.
#pragma once

#include <cstdint>
#include <string>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name)
#endif

namespace tessera::benchmarks {

// Under callgrind, by tools/bench_instructions.py: the instructions of that many calls, in a dump of that name.
template <typename Body>
void count_instructions(const std::string& name, int64_t calls, Body&& body) {
  CALLGRIND_ZERO_STATS;
  for (int64_t i = 0; i < calls; ++i) {
    body();
  }
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

}  // namespace tessera::benchmarks
