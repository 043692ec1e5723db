// A file's bytes, mapped into memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tessera::data {

// A read-only, memory-mapped file. Copies share the mapping; thread-safe.
//
// The file must not shrink while it is in use.
class MappedFile {
 public:
  // Throws DataError if the file cannot be read, is no regular file, or is empty.
  explicit MappedFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

  // What keeps bytes() alive.
  const std::shared_ptr<const void>& mapping() const { return mapping_; }

 private:
  std::string path_;
  std::shared_ptr<const void> mapping_;
  std::span<const uint8_t> bytes_;
};

}  // namespace tessera::data
