// How many bytes were moved, by what, over which axis.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace tessera::trace {

// Bytes and calls of one kind of collective over one axis on behalf of one op.
struct LedgerEntry {
  std::string collective;  // all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, get
  std::string axis;        // mesh axis name
  std::string op;          // the operator that needed it, or what the caller named
  int64_t calls = 0;
  // Bytes this rank sends under a ring algorithm (reference: P->R 2T(p-1)/p, S->R and P->S T(p-1)/p, S(i)->S(j)
  // T(p-1)/p^2 .. per rank, T the tensor's bytes, p the ranks of the axis).
  int64_t bytes = 0;
};

// A collective that the backend of an axis lacks, and what it was composed of instead.
struct Composition {
  std::string collective;
  std::string axis;
  std::string parts;  // the backend's own: `all_to_all, all_gather`, `send, receive`
  int64_t calls = 0;
};

// What one rank sent. Not thread-safe: one per rank.
class Ledger {
 public:
  // Adds one call. A null `op` counts as an empty name.
  void record(const char* collective, const std::string& axis, const char* op, int64_t bytes);
  // Adds one call that was composed. Its bytes are recorded like any other's.
  void record_composed(const char* collective, const std::string& axis, const char* parts);
  void clear();

  // Sorted by axis, collective, op.
  std::vector<LedgerEntry> entries() const;
  // What was recorded since the entries were these.
  std::vector<LedgerEntry> since(const std::vector<LedgerEntry>& then) const;
  // Adds as many calls and bytes.
  void add(const std::vector<LedgerEntry>& entries);
  int64_t total_bytes() const;
  int64_t bytes_of(const std::string& collective, const std::string& axis) const;
  int64_t calls_of(const std::string& collective, const std::string& axis) const;

  // Sorted by axis, collective, parts.
  std::vector<Composition> compositions() const;

  // `{"entries": [...], "total_bytes": n}`, and `"composed": [...]` where anything was.
  std::string json() const;

 private:
  LedgerEntry& entry_of(std::string_view collective, std::string_view axis, std::string_view op);

  // By axis, collective, op; compared transparently, so that a repeated record allocates nothing.
  std::map<std::tuple<std::string, std::string, std::string>, LedgerEntry, std::less<>> entries_;
  // By axis, collective, parts: calls.
  std::map<std::tuple<std::string, std::string, std::string>, int64_t, std::less<>> composed_;
};

}  // namespace tessera::trace
