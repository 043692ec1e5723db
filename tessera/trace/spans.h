// What one rank did when, for chrome://tracing and Perfetto.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::trace {

// Nested spans of time, one inside of the other. Not thread-safe: one per rank.
class Spans {
 public:
  // `category` is a literal. `bytes` is shown with the span; negative: none.
  void begin(std::string_view name, const char* category, int64_t bytes = -1);
  // Ends the span that was begun last of those that have not ended.
  void end();

  size_t depth() const { return open_.size(); }

  // When the first span began, in nanoseconds since 1970; INT64_MAX without one.
  int64_t first_ns() const;

  // The spans that have ended and the name of the lane as trace events, separated by commas, times counted from
  // `zero_ns` since 1970. One process, `rank` its thread.
  std::string json(int64_t rank, int64_t zero_ns) const;

 private:
  struct Span {
    const std::string* name;
    const char* category;
    int64_t bytes, begin_ns, end_ns;
  };

  std::map<std::string, char, std::less<>> names_;
  std::vector<Span> spans_;  // by their begin
  std::vector<size_t> open_;
  int64_t since_1970_ns_ = 0;  // read once: no two readings of two clocks agree
};

// The whole file: the ranks' json().
std::string trace_file(const std::vector<std::string>& ranks);

}  // namespace tessera::trace
