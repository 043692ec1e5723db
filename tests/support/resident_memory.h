// What this process held in memory at most, as the kernel counts it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <malloc.h>

namespace tessera::support {

// Bytes of a line of /proc/self/status.
inline int64_t resident_bytes(const std::string& line) {
  std::ifstream status("/proc/self/status");
  for (std::string text; std::getline(status, text);) {
    if (text.starts_with(line + ":")) {
      return std::stoll(text.substr(line.size() + 1)) * 1024;
    }
  }
  return -1;
}

// The most memory that the process has beyond what it has now.
class PeakOfMemory {
 public:
  PeakOfMemory() {
    ::malloc_trim(0);                               // what was freed is not memory to take again unseen
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    begin_ = resident_bytes("VmRSS");
  }

  int64_t bytes() const { return resident_bytes("VmHWM") - begin_; }

 private:
  int64_t begin_ = 0;
};

}  // namespace tessera::support
