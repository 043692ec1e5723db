#include "tessera/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace tessera::base {
namespace {

// Three significant digits, never in exponent form: 1.23, 12.3, 123.
std::string three_digits(double value) {
  const int decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  std::array<char, 32> buffer;
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  std::string text(buffer.data(), static_cast<size_t>(length));
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text;
}

// `value` in the largest unit that leaves at least one of it.
template <size_t N>
std::string in_units(double value, double step, const std::array<const char*, N>& units) {
  size_t unit = 0;
  while (std::abs(value) >= step - 0.5 && unit + 1 < N) {
    value /= step;
    ++unit;
  }
  return three_digits(value) + units[unit];
}

std::string two_parts(int64_t large, const char* large_unit, int64_t small, const char* small_unit) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%lld %s %02lld %s", static_cast<long long>(large), large_unit,
                static_cast<long long>(small), small_unit);
  return buffer.data();
}

}  // namespace

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0;;) {
    const auto end = text.find(separator, at);
    parts.emplace_back(text.substr(at, end - at));
    if (end == std::string_view::npos) {
      return parts;
    }
    at = end + 1;
  }
}

std::optional<int64_t> try_parse_int(std::string_view text) {
  int64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [at, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    last[j] = static_cast<int64_t>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  int64_t best_distance = 0;
  for (const auto& candidate : candidates) {
    const auto distance = edit_distance(name, candidate);
    const auto longer = static_cast<int64_t>(std::max(name.size(), candidate.size()));
    if (distance <= (longer + 1) / 3 && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const auto best = nearest(name, candidates);
  return best ? "; did you mean \"" + *best + "\"?" : "";
}

std::string human_bytes(int64_t bytes) {
  return in_units(static_cast<double>(bytes), 1024, std::array{" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

std::string human_count(int64_t count) {
  return in_units(static_cast<double>(count), 1000, std::array{"", " K", " M", " G", " T"});
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds)) {
    return "unknown";
  }
  if (seconds < 59.95) {
    const bool is_tiny = seconds < 1e-6, is_small = seconds < 1e-3;
    return is_tiny         ? three_digits(seconds * 1e9) + " ns"
           : is_small      ? three_digits(seconds * 1e6) + " us"
           : seconds < 1.0 ? three_digits(seconds * 1e3) + " ms"
                           : three_digits(seconds) + " s";
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) {
    return two_parts(whole / 60, "min", whole % 60, "s");
  }
  if (whole < 86400) {
    return two_parts(whole / 3600, "h", whole / 60 % 60, "min");
  }
  return two_parts(whole / 86400, "d", whole / 3600 % 24, "h");
}

std::string exact_double(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  std::array<char, 40> buffer;
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.17g", value);
  return std::string(buffer.data(), static_cast<size_t>(length));
}

}  // namespace tessera::base
