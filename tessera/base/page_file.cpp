#include "tessera/base/page_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::base {
namespace {

size_t whole_pages(size_t bytes) { return (bytes + PageFile::kPage - 1) / PageFile::kPage * PageFile::kPage; }

int open_nameless(const std::string& folder, const char* who) {
  std::string path = folder + "/tessera_pages_XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  TESSERA_CHECK_AS(DataError, file >= 0, "[", who, "] cannot make a file in \"", folder, "\": ", std::strerror(errno),
                   "; accepted: a folder that is there, on a disk that may be written to");
  ::unlink(path.c_str());
  return file;
}

}  // namespace

PageFile::PageFile(const std::string& folder, const char* who, const char* what)
    : folder_(folder), who_(who), what_(what), file_(open_nameless(folder, who)) {}

PageFile::~PageFile() { ::close(file_); }

bool PageFile::has(const void* begin) const {
  const std::scoped_lock lock(mutex_);
  return places_.contains(begin);
}

void* PageFile::add(size_t bytes, const void* values) {
  const size_t size = whole_pages(bytes);
  const std::scoped_lock lock(mutex_);
  const size_t offset = find_room(size);
  int failed = take_disk(offset + size);
  if (failed == 0 && values) {
    failed = write(offset, bytes, values);
  }
  if (failed != 0) {
    give_room(offset, size);
  }
  TESSERA_CHECK_AS(DataError, failed == 0, "[", who_, "] no room in \"", folder_, "\" for ",
                   human_bytes(static_cast<int64_t>(bytes)), " more of ", what_, " (",
                   human_bytes(static_cast<int64_t>(end_)), " are there): ", std::strerror(failed),
                   "; accepted: a folder on a disk with room for it");
  void* begin = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(offset));
  if (begin == MAP_FAILED) {
    give_room(offset, size);
  }
  TESSERA_CHECK_AS(DataError, begin != MAP_FAILED, "[", who_, "] cannot map ", human_bytes(static_cast<int64_t>(size)),
                   " of a file in \"", folder_, "\": ", std::strerror(errno),
                   "; accepted: a folder on a disk of this machine");
  places_.emplace(begin, Place{offset, size, bytes});
  return begin;
}

void PageFile::remove(void* begin) {
  const std::scoped_lock lock(mutex_);
  const auto found = places_.extract(begin);
  const auto [offset, size, bytes] = found.mapped();
  ::munmap(begin, size);
  give_room(offset, size);
}

// Taken when the file grows: a full disk would kill who writes to the memory.
int PageFile::take_disk(size_t end) {
  if (end <= taken_) {
    return 0;
  }
  const int failed = ::posix_fallocate(file_, static_cast<off_t>(taken_), static_cast<off_t>(end - taken_));
  if (failed == 0) {
    taken_ = end;
  }
  return failed;
}

int PageFile::write(size_t offset, size_t size, const void* values) {
  const auto* from = static_cast<const char*>(values);
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::pwrite(file_, from + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno != EINTR) {
      return errno;
    }
    done += count > 0 ? static_cast<size_t>(count) : 0;
  }
  return 0;
}

// The first room that is large enough, or the end.
size_t PageFile::find_room(size_t size) {
  for (auto it = room_.begin(); it != room_.end(); ++it) {
    const auto [offset, free] = *it;
    if (free < size) {
      continue;
    }
    room_.erase(it);
    if (free > size) {
      room_.emplace(offset + size, free - size);
    }
    return offset;
  }
  const size_t offset = end_;
  end_ += size;
  return offset;
}

void PageFile::give_room(size_t offset, size_t size) {
  auto after = room_.lower_bound(offset);
  if (after != room_.end() && after->first == offset + size) {
    size += after->second;
    after = room_.erase(after);
  }
  if (after != room_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      room_.erase(before);
    }
  }
  if (offset + size == end_) {
    end_ = offset;  // free room at the end is none
  } else {
    room_.emplace(offset, size);
  }
}

void PageFile::release(void* begin) {
  const std::scoped_lock lock(mutex_);
  ::madvise(begin, places_.at(begin).size, MADV_DONTNEED);
}

void PageFile::release_all() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [begin, place] : places_) {
    ::madvise(const_cast<void*>(begin), place.size, MADV_DONTNEED);
  }
}

void PageFile::write_back() { ::sync_file_range(file_, 0, 0, SYNC_FILE_RANGE_WRITE); }

int64_t PageFile::size() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int64_t>(end_);
}

int64_t PageFile::bytes() const {
  const std::scoped_lock lock(mutex_);
  size_t all = 0;
  for (const auto& [begin, place] : places_) {
    all += place.bytes;
  }
  return static_cast<int64_t>(all);
}

}  // namespace tessera::base
