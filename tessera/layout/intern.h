// A table of records, so that equal values share one address.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tessera::layout::detail {

// Records are found by hash and a predicate, and made once; they stay until they are erased. Thread-safe; threads that
// look for records of different hashes rarely meet, since the table is cut into parts with a lock each.
template <typename Record>
class InternTable {
 public:
  // The record for which `equals(record)` holds among those of this hash, or the one that `make()` returns.
  // `take(record)` runs before any other thread may erase it.
  template <typename Equals, typename Make, typename Take>
  const Record* find_or_make(uint64_t hash, Equals equals, Make make, Take take) {
    Part& part = part_of(hash);
    std::lock_guard<std::mutex> lock(part.mutex);
    auto [it, end] = part.records.equal_range(hash);
    while (it != end && !equals(*it->second)) {
      ++it;
    }
    if (it == end) {
      it = part.records.emplace(hash, std::make_unique<const Record>(make()));
    }
    take(*it->second);
    return it->second.get();
  }

  // The same for records that are never erased.
  template <typename Equals, typename Make>
  const Record* find_or_make(uint64_t hash, Equals equals, Make make) {
    return find_or_make(hash, equals, make, [](const Record&) {});
  }

  // Destroys the record at this address if it is still there and `is_unused(record)` holds.
  template <typename IsUnused>
  void erase(uint64_t hash, const Record* record, IsUnused is_unused) {
    Part& part = part_of(hash);
    std::lock_guard<std::mutex> lock(part.mutex);
    auto [it, end] = part.records.equal_range(hash);
    while (it != end && it->second.get() != record) {
      ++it;
    }
    if (it != end && is_unused(*it->second)) {
      part.records.erase(it);
    }
  }

  size_t size() {
    size_t count = 0;
    for (Part& part : parts_) {
      std::lock_guard<std::mutex> lock(part.mutex);
      count += part.records.size();
    }
    return count;
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

  Part& part_of(uint64_t hash) { return parts_[(hash >> 58) % kParts]; }

  std::array<Part, kParts> parts_;
};

}  // namespace tessera::layout::detail
