// Another store, through which things go wrong.
#pragma once

#include <atomic>
#include <limits>
#include <map>

#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

// The process ended here. No std::exception, so that nothing that handles errors handles it.
struct SimulatedCrash {};

// What goes wrong. Paths are whole.
struct Faults {
  int64_t crash_at = -1;                               // the call, from 0, in which the process ends
  int64_t room = std::numeric_limits<int64_t>::max();  // bytes until the disk is full
  bool read_only = false;                              // nothing can be made or removed
  std::map<std::string, int64_t> flipped = {};         // file: the bit, from 0, that is read wrongly
  std::map<std::string, int64_t> cut = {};             // file: the bytes after which it seems to end
};

// Hands every call on to `inner`, which outlives it. Every function and every append() and close() counts as a call.
//
// A call that waits for something to last crashes before it does anything, any other after it: with the losses of
// MemoryStore::after_power_loss() that covers both. Every call after a crash throws SimulatedCrash too.
class FaultyStore : public Store {
 public:
  FaultyStore(Store& inner, Faults faults) : inner_(inner), faults_(std::move(faults)) {}

  std::unique_ptr<NewFile> create(const std::string& path) override;
  std::optional<int64_t> try_size(const std::string& path) override;
  void read(const std::string& path, int64_t begin, void* data, size_t size) override;
  Listing list(const std::string& folder) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& folder) override;
  void remove_folder(const std::string& folder) override;
  void sync_folder(const std::string& folder) override;

  // Calls so far.
  int64_t calls() const { return calls_; }

 private:
  class File;
  class Call;

  void verify_writable(const char* what, const std::string& path) const;

  Store& inner_;
  const Faults faults_;
  std::atomic<int64_t> calls_ = 0;
  std::atomic<int64_t> written_ = 0;  // or tried to
};

}  // namespace tessera::checkpoint
