// Memory that lies in a file instead of in the process.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace tessera::base {

// Places of whole pages (4 KiB) in a file that the system maps: who reads one takes it from the disk, or from the
// system's cache of it. The file has no name: it is gone with the process, however that ends. Thread-safe.
class PageFile {
 public:
  static constexpr size_t kPage = 4096;

  // `folder` is there, on a disk of this machine; `what` lies in the file and `who` asks, for errors. Throws DataError
  // with the system's reason.
  PageFile(const std::string& folder, const char* who, const char* what);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // A place of so many bytes, of any values, or a copy of what is at `values`, of which no memory is mapped yet. Throws
  // DataError if the disk has no room.
  void* add(size_t bytes, const void* values = nullptr);
  // ... which is not read any more. Its room is free for others, and stays the file's.
  void remove(void* begin);
  bool has(const void* begin) const;

  // No memory is left mapped to the place, or to any: what is read is mapped again.
  void release(void* begin);
  void release_all();
  // What was written begins to go to the disk.
  void write_back();

  // Of the places that there are; and of the file, with the room between them.
  int64_t bytes() const;
  int64_t size() const;

 private:
  struct Place {
    size_t offset, size, bytes;
  };

  int take_disk(size_t end);
  int write(size_t offset, size_t size, const void* values);
  size_t find_room(size_t size);
  void give_room(size_t offset, size_t size);

  const std::string folder_;
  const char* const who_;
  const char* const what_;
  const int file_;
  mutable std::mutex mutex_;
  std::map<const void*, Place> places_;
  std::map<size_t, size_t> room_;  // between places: offset, size
  size_t end_ = 0;                 // of the last place
  size_t taken_ = 0;               // of the disk
};

}  // namespace tessera::base
