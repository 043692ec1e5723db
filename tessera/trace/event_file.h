// Curves for TensorBoard.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::trace {

// One event file: records with masked CRC-32C, each a protobuf `Event`. Whoever reads it meanwhile sees whole records.
class EventFile {
 public:
  // Makes the folder and a file in it with a name of its own, and writes the version record. Throws DataError if that
  // cannot be done.
  explicit EventFile(const std::string& folder);

  // Points of several curves at one step, now; values are rounded to float. Throws DataError on a full disk.
  void add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::string& path() const { return path_; }

 private:
  void write(std::string_view record);

  std::string path_;
  std::ofstream file_;
};

// CRC-32C (Castagnoli): 0xe3069283 of "123456789".
uint32_t crc32c(std::string_view bytes);

}  // namespace tessera::trace
