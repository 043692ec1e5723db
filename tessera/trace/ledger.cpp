#include "tessera/trace/ledger.h"

#include <string_view>

#include "tessera/trace/json_text.h"

namespace tessera::trace {

LedgerEntry& Ledger::entry_of(std::string_view collective, std::string_view axis, std::string_view op) {
  auto it = entries_.find(std::tuple(axis, collective, op));
  if (it == entries_.end()) {
    LedgerEntry entry{.collective = std::string(collective), .axis = std::string(axis), .op = std::string(op)};
    it = entries_.emplace(std::tuple(entry.axis, entry.collective, entry.op), entry).first;
  }
  return it->second;
}

void Ledger::record(const char* collective, const std::string& axis, const char* op, int64_t bytes) {
  LedgerEntry& entry = entry_of(collective, axis, op ? op : "");
  ++entry.calls;
  entry.bytes += bytes;
}

void Ledger::record_composed(const char* collective, const std::string& axis, const char* parts) {
  auto it = composed_.find(std::tuple<std::string_view, std::string_view, std::string_view>(axis, collective, parts));
  if (it == composed_.end()) {
    it = composed_.emplace(std::tuple(axis, collective, parts), 0).first;
  }
  ++it->second;
}

void Ledger::clear() {
  entries_.clear();
  composed_.clear();
}

std::vector<Composition> Ledger::compositions() const {
  std::vector<Composition> list;
  for (const auto& [key, calls] : composed_) {
    list.push_back(
        {.collective = std::get<1>(key), .axis = std::get<0>(key), .parts = std::get<2>(key), .calls = calls});
  }
  return list;
}

std::vector<LedgerEntry> Ledger::entries() const {
  std::vector<LedgerEntry> list;
  list.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    list.push_back(entry);
  }
  return list;
}

std::vector<LedgerEntry> Ledger::since(const std::vector<LedgerEntry>& then) const {
  std::vector<LedgerEntry> list;
  auto before = then.begin();
  for (LedgerEntry entry : entries()) {
    const auto same = [&](const LedgerEntry& other) {
      return other.axis == entry.axis && other.collective == entry.collective && other.op == entry.op;
    };
    if (before != then.end() && same(*before)) {
      entry.calls -= before->calls;
      entry.bytes -= before->bytes;
      ++before;
    }
    if (entry.calls > 0) {
      list.push_back(std::move(entry));
    }
  }
  return list;
}

void Ledger::add(const std::vector<LedgerEntry>& entries) {
  for (const LedgerEntry& each : entries) {
    LedgerEntry& entry = entry_of(each.collective, each.axis, each.op);
    entry.calls += each.calls;
    entry.bytes += each.bytes;
  }
}

int64_t Ledger::total_bytes() const {
  int64_t total = 0;
  for (const auto& [key, entry] : entries_) {
    total += entry.bytes;
  }
  return total;
}

int64_t Ledger::bytes_of(const std::string& collective, const std::string& axis) const {
  int64_t total = 0;
  for (const auto& [key, entry] : entries_) {
    total += entry.collective == collective && entry.axis == axis ? entry.bytes : 0;
  }
  return total;
}

int64_t Ledger::calls_of(const std::string& collective, const std::string& axis) const {
  int64_t total = 0;
  for (const auto& [key, entry] : entries_) {
    total += entry.collective == collective && entry.axis == axis ? entry.calls : 0;
  }
  return total;
}

std::string Ledger::json() const {
  std::string out = "{\"entries\": [";
  const char* separator = "";
  for (const auto& [key, entry] : entries_) {
    out += separator;
    out += "{\"axis\": " + json_text(entry.axis) + ", \"collective\": " + json_text(entry.collective) +
           ", \"op\": " + json_text(entry.op) + ", \"calls\": " + std::to_string(entry.calls) +
           ", \"bytes\": " + std::to_string(entry.bytes) + "}";
    separator = ", ";
  }
  out += "], \"total_bytes\": " + std::to_string(total_bytes());
  separator = ", \"composed\": [";
  for (const auto& [key, calls] : composed_) {
    const auto& [axis, collective, parts] = key;
    out += separator;
    out += "{\"axis\": " + json_text(axis) + ", \"collective\": " + json_text(collective) +
           ", \"parts\": " + json_text(parts) + ", \"calls\": " + std::to_string(calls) + "}";
    separator = ", ";
  }
  return out + (composed_.empty() ? "}" : "]}");
}

}  // namespace tessera::trace
