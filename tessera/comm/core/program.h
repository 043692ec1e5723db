// What a rank has executed, for telling ranks that parted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::comm {

// What a rank has executed: a running hash over (op, layouts), and the last op's name. It rides on every collective, so
// that ranks that run different programs are told so by both ops' names.
struct Program {
  uint64_t hash = 0;
  uint64_t count = 0;
  // The last ops, newest at (count - 1) % kKept, for finding where two ranks parted.
  static constexpr size_t kKept = 64;
  struct Entry {
    uint64_t hash = 0;
    const char* op = "";
    const void* detail = nullptr;
  };
  Entry last[kKept];

  // `op` must outlive the program (an interned operator name).
  void note(const char* op, uint64_t key, const void* detail = nullptr) {
    hash = (hash ^ key) * 0x9E3779B97F4A7C15ull;
    last[count++ % kKept] = {hash, op, detail};
  }
};

// How messages print the `detail` of an op where programs parted; null (the default) leaves it out. Called on any
// rank's thread.
using DetailPrinter = std::string (*)(const void* detail);
void set_detail_printer(DetailPrinter printer);
DetailPrinter detail_printer();

}  // namespace tessera::comm
