// A file that is there whole or not at all.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::base {

// Writes beside `path` and takes its place at the end. Whoever reads `path` sees what was there before or all of the
// new content, also when the program is killed or the disk is full. Not thread-safe; two writers of one path must be
// two processes.
class AtomicFile {
 public:
  // Throws DataError if the folder cannot be written to.
  explicit AtomicFile(const std::string& path);

  // Removes what was written unless commit() returned.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throws DataError on a full disk and the like.
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }

  // Waits until the content is on the disk, then renames. Nothing may be written afterwards. Throws DataError.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace tessera::base
