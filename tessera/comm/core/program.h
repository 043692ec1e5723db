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
  // Of the keys of all ops: the same in whichever order they came.
  uint64_t sum = 0;
  bool has_gone_past = false;  // some ops (go_past)
  // In a pipeline's schedule: the first op that read, on an earlier stage, what a later one had made.
  struct WayBack {
    const char* reader = nullptr;  // null: none did
    int64_t from = 0, to = 0;      // stages
  } way_back = {};
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
    sum += key;
    last[count++ % kKept] = {hash, op, detail};
  }

  // What ops did to a program, but for their order: the same wherever in a program they stand.
  struct Stretch {
    uint64_t sum = 0, count = 0;
  };
  Stretch place() const { return {sum, count}; }
  // Since the program stood there.
  Stretch since(const Stretch& then) const { return {sum - then.sum, count - then.count}; }
  // The rank goes past such ops.
  void go_past(const Stretch& ops) {
    note("module of another stage", ops.sum);
    count += ops.count - 1;
    has_gone_past = true;
  }
};

// How messages print the `detail` of an op where programs parted; null (the default) leaves it out. Called on any
// rank's thread.
using DetailPrinter = std::string (*)(const void* detail);
void set_detail_printer(DetailPrinter printer);
DetailPrinter detail_printer();

}  // namespace tessera::comm
