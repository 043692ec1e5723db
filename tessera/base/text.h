// Small text helpers: joining, splitting, near names, and numbers as people read them.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

// The items written by `write(stream, item)` with `separator` between them.
template <typename Range, typename Write>
std::string join(const Range& items, std::string_view separator, Write write) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) {
      out << separator;
    }
    first = false;
    write(out, item);
  }
  return out.str();
}

// The items written by operator<< with `separator` between them.
template <typename Range>
std::string join(const Range& items, std::string_view separator) {
  return join(items, separator, [](std::ostream& out, const auto& item) { out << item; });
}

// The text without spaces, tabs and line ends at its two ends.
std::string_view trim(std::string_view text);

// The parts between separators, untrimmed; an empty text has one empty part.
std::vector<std::string> split(std::string_view text, char separator);

// The integer that the whole text is, or nothing.
std::optional<int64_t> try_parse_int(std::string_view text);

// The fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int64_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `name` was probably meant to be, or nothing when none is near. The first wins a tie.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

// `; did you mean "x"?` for the nearest candidate, or an empty text: the end of an error about a name.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// 0 B, 512 B, 4.3 KiB, 1.25 MiB: three significant digits, powers of 1024.
std::string human_bytes(int64_t bytes);

// 0, 999, 1.05 K, 1.23 M, 45.6 G: three significant digits, powers of 1000.
std::string human_count(int64_t count);

// 850 ns, 12.3 us, 4.56 ms, 7.8 s, 2 min 05 s, 1 h 02 min: durations from nanoseconds to days.
std::string human_duration(double seconds);

// The shortest-printf form with 17 significant digits, which reads back to the same double: 0.10000000000000001.
// Infinities and NaN read `inf`, `-inf`, `nan`.
std::string exact_double(double value);

}  // namespace tessera::base
