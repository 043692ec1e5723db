#include "tessera/trace/spans.h"

#include <c10/util/StringUtil.h>

#include "tessera/base/text.h"
#include "tessera/trace/clock.h"
#include "tessera/trace/json_text.h"

namespace tessera::trace {
namespace {

// Microseconds with the three digits of nanoseconds.
std::string us(int64_t ns) { return c10::str(ns / 1000, ".", std::to_string(1000 + ns % 1000).substr(1)); }

}  // namespace

void Spans::begin(std::string_view name, const char* category, int64_t bytes) {
  auto known = names_.find(name);
  if (known == names_.end()) {
    known = names_.emplace(name, 0).first;
  }
  if (spans_.empty()) {
    since_1970_ns_ = ns_since_1970();
  }
  open_.push_back(spans_.size());
  spans_.push_back({&known->first, category, bytes, now_ns(), 0});
}

void Spans::end() {
  spans_[open_.back()].end_ns = now_ns();
  open_.pop_back();
}

int64_t Spans::first_ns() const { return spans_.empty() ? INT64_MAX : spans_.front().begin_ns + since_1970_ns_; }

std::string Spans::json(int64_t rank, int64_t zero_ns) const {
  const auto shift = since_1970_ns_ - zero_ns;
  const auto lane = c10::str(", \"pid\": 0, \"tid\": ", rank);
  std::string out =
      c10::str("{\"ph\": \"M\", \"name\": \"thread_name\"", lane, ", \"args\": {\"name\": \"rank ", rank, "\"}},\n",
               "{\"ph\": \"M\", \"name\": \"thread_sort_index\"", lane, ", \"args\": {\"sort_index\": ", rank, "}}");
  for (const auto& span : spans_) {
    if (span.end_ns == 0) {
      continue;
    }
    out += c10::str(",\n{\"ph\": \"X\", \"name\": ", json_text(*span.name), ", \"cat\": \"", span.category, "\"", lane,
                    ", \"ts\": ", us(span.begin_ns + shift), ", \"dur\": ", us(span.end_ns - span.begin_ns));
    out += span.bytes < 0 ? "}" : c10::str(", \"args\": {\"bytes\": ", span.bytes, "}}");
  }
  return out;
}

std::string trace_file(const std::vector<std::string>& ranks) {
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, "
         "\"args\": {\"name\": \"tessera\"}},\n" +
         base::join(ranks, ",\n") + "\n]}\n";
}

}  // namespace tessera::trace
