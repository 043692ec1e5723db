// Times that other work on the machine disturbs little: the least of many short runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace tessera::benchmarks {

// Microseconds that one call of `body` takes when called `calls` times in a row.
template <typename Body>
double microseconds(int64_t calls, Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) {
    body();
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  return time.count() / static_cast<double>(calls);
}

// The least time seen so far.
class Least {
 public:
  void add(double value) { value_ = std::min(value_, value); }
  double value() const { return value_; }

 private:
  double value_ = std::numeric_limits<double>::infinity();
};

// One line of a table: the name, then the values in columns of ten.
inline void print_row(const std::string& name, const std::vector<double>& values, const char* format = "%10.3f") {
  std::printf("%-28s", name.c_str());
  for (double value : values) {
    std::printf(format, value);
  }
  std::printf("\n");
  std::fflush(stdout);
}

inline void print_header(const std::string& title, const std::vector<std::string>& columns) {
  std::printf("%-28s", title.c_str());
  for (const std::string& column : columns) {
    std::printf("%10s", column.c_str());
  }
  std::printf("\n");
}

}  // namespace tessera::benchmarks
