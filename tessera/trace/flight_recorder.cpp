#include "tessera/trace/flight_recorder.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/trace/clock.h"
#include "tessera/trace/json_text.h"

namespace tessera::trace {

std::string flight_file(int64_t rank) { return "flight_rank_" + std::to_string(rank) + ".json"; }

uint64_t FlightRecorder::begin(const Flight& flight) {
  std::lock_guard lock(mutex_);
  Record record{};
  record.kind = flight.kind;
  record.detail = flight.detail;
  record.op = interned(flight.op);
  record.from = flight.from;
  record.to = flight.to;
  record.group = group_of(flight);
  record.bytes = flight.bytes;
  record.tensors = flight.tensors;
  record.peer = flight.peer;
  record.tag = flight.tag;
  record.dims = static_cast<uint8_t>(std::min(flight.sizes.size(), kDims + 1));
  std::copy_n(flight.sizes.begin(), std::min(flight.sizes.size(), kDims), record.sizes);
  record.is_uniform = flight.is_uniform;
  record.dtype = flight.dtype;
  auto& group = groups_[record.group];
  record.number = flight.tag < 0 ? group.collectives++ : group.messages[{flight.kind, flight.peer, flight.tag}]++;
  record.begin_ns = now_ns();
  if (ring_.size() < kKept) {
    ring_.reserve(kKept);
    ring_.push_back(record);
  } else {
    ring_[count_ % kKept] = record;
  }
  return count_++;
}

void FlightRecorder::end(uint64_t flight, bool failed) {
  const auto now = now_ns();
  std::lock_guard lock(mutex_);
  if (count_ - flight <= kKept) {
    auto& record = ring_[flight % kKept];
    record.end_ns = now;
    record.state = failed ? State::kFailed : State::kDone;
  }
}

// A rank has few groups, and mostly goes on in one of the last.
size_t FlightRecorder::group_of(const Flight& flight) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].name == flight.group && groups_[i].ranks == flight.ranks) {
      return i;
    }
  }
  groups_.push_back({flight.group, flight.ranks, 0, {}});
  return groups_.size() - 1;
}

const std::string* FlightRecorder::interned(std::string_view op) {
  const auto found = ops_.find(op);
  return found != ops_.end() ? &found->first : &ops_.emplace(op, 0).first->first;
}

std::string FlightRecorder::json_of(const Record& record, int64_t to_1970) const {
  constexpr const char* kStates[] = {"running", "done", "failed"};
  const auto us = [&](int64_t ns) {
    return c10::str((ns + to_1970) / 1000, ".", std::to_string(1000 + (ns + to_1970) % 1000).substr(1));
  };
  const c10::IntArrayRef sizes(record.sizes, std::min<size_t>(record.dims, kDims));
  std::string out =
      c10::str("{\"group\": ", record.group, ", \"number\": ", record.number, ", \"kind\": \"", record.kind,
               "\", \"detail\": \"", record.detail, "\", \"op\": ", json_text(*record.op), ", \"dtype\": \"",
               c10::toString(record.dtype), "\", \"sizes\": [", base::join(sizes, ", "),
               "], \"tensors\": ", record.tensors, ", \"bytes\": ", record.bytes);
  if (record.dims > kDims) {
    out += ", \"more_sizes\": true";
  }
  if (record.is_uniform) {
    out += ", \"uniform\": true";
  }
  if (record.peer >= 0) {
    out += c10::str(", \"peer\": ", record.peer);
  }
  if (record.tag >= 0) {
    out += c10::str(", \"tag\": ", record.tag);
  }
  if (printer_ && record.from) {
    out += ", \"from\": " + json_text(printer_(record.from));
  }
  if (printer_ && record.to) {
    out += ", \"to\": " + json_text(printer_(record.to));
  }
  out += c10::str(", \"state\": \"", kStates[static_cast<size_t>(record.state)],
                  "\", \"begin_us\": ", us(record.begin_ns));
  return out + (record.state == State::kRunning ? "}" : ", \"end_us\": " + us(record.end_ns) + "}");
}

std::string FlightRecorder::json(int64_t rank, int64_t world, std::string_view reason) const {
  std::lock_guard lock(mutex_);
  const auto to_1970 = ns_since_1970();
  std::string out =
      c10::str("{\"flight_recorder\": 1, \"rank\": ", rank, ", \"world\": ", world, ", \"reason\": ", json_text(reason),
               ", \"at_us\": ", (now_ns() + to_1970) / 1000, ",\n\"groups\": [");
  for (const auto& group : groups_) {
    out += c10::str(&group == groups_.data() ? "" : ", ", "{\"name\": ", json_text(group.name), ", \"ranks\": [",
                    base::join(group.ranks, ", "), "], \"collectives\": ", group.collectives, "}");
  }
  out += "],\n\"records\": [";
  for (uint64_t i = count_ - ring_.size(); i < count_; ++i) {
    out += (i == count_ - ring_.size() ? "\n" : ",\n") + json_of(ring_[i % kKept], to_1970);
  }
  return out + "\n]}\n";
}

}  // namespace tessera::trace
