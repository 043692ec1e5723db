// A table of immortal records, so that equal values share one address.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tessera::layout::detail {

// Records are found by hash and a predicate, made once, and never destroyed. Thread-safe; threads that look for records of
// different hashes rarely meet, since the table is cut into parts with a lock each.
template <typename Record>
class InternTable {
 public:
  // The record for which `equals(record)` holds among those of this hash, or the one that `make()` returns, kept from now on.
  template <typename Equals, typename Make>
  const Record* find_or_make(uint64_t hash, Equals equals, Make make) {
    Part& part = parts_[(hash >> 58) % kParts];
    std::lock_guard<std::mutex> lock(part.mutex);
    auto [it, end] = part.records.equal_range(hash);
    for (; it != end; ++it) {
      if (equals(*it->second)) {
        return it->second.get();
      }
    }
    return part.records.emplace(hash, std::make_unique<const Record>(make()))->second.get();
  }

 private:
  static constexpr size_t kParts = 64;
  struct Identity {
    size_t operator()(uint64_t hash) const { return hash; }
  };
  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_multimap<uint64_t, std::unique_ptr<const Record>, Identity> records;
  };
  std::array<Part, kParts> parts_;
};

}  // namespace tessera::layout::detail
