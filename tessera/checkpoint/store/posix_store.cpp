#include "tessera/checkpoint/store/posix_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::checkpoint {
namespace {

// What would work where the system says no.
const char* accepted_instead_of(int error) {
  switch (error) {
    case ENOENT: return "a path that is there";
    case ENOTDIR: return "a path whose folders are folders";
    case EISDIR: return "a file";
    case EACCES:
    case EPERM: return "a path that this user may use so";
    case EROFS: return "a path on a disk that may be written to";
    case ENOSPC:
    case EDQUOT: return "a path on a disk that has room";
    default: return "a path of which the system can do this";
  }
}

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  if (error == EEXIST) {
    TESSERA_THROW(FileExists, "[store] cannot ", what, " \"", path, "\": ", std::strerror(error),
                  "; accepted: a path at which nothing is yet");
  }
  TESSERA_THROW(DataError, "[store] cannot ", what, " \"", path, "\": ", std::strerror(error),
                "; accepted: ", accepted_instead_of(error));
}

// A descriptor that is closed at the end.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* what)
      : value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (value_ < 0) {
      fail(what, path, errno);
    }
  }
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

constexpr int64_t kBegin = int64_t{8} << 20;  // bytes after which a disk may begin with them

class PosixFile : public NewFile {
 public:
  explicit PosixFile(const std::string& path) : path_(path), file_(path, O_WRONLY | O_CREAT | O_EXCL, "create") {}

  void append(const void* data, size_t size) override {
    const auto* next = static_cast<const char*>(data);
    while (size > 0) {
      const auto written = ::write(file_.get(), next, size);
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written < 0) {
        fail("write to", path_, errno);
      }
      next += written;
      size -= static_cast<size_t>(written);
      size_ += written;
    }
    if (size_ - begun_ >= kBegin) {  // so that close() finds little left; it says whether that went well
      ::sync_file_range(file_.get(), begun_, size_ - begun_, SYNC_FILE_RANGE_WRITE);
      begun_ = size_;
    }
  }

  void close() override {
    if (::fdatasync(file_.get()) != 0) {
      fail("synchronise", path_, errno);
    }
    if (::close(file_.release()) != 0) {  // network file systems may say here that a write failed
      fail("close", path_, errno);
    }
  }

 private:
  const std::string path_;
  Descriptor file_;
  int64_t size_ = 0;
  int64_t begun_ = 0;  // bytes that the disk was told to begin with
};

}  // namespace

std::unique_ptr<NewFile> PosixStore::create(const std::string& path) { return std::make_unique<PosixFile>(path); }

std::optional<int64_t> PosixStore::try_size(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) == 0) {
    return S_ISREG(found.st_mode) ? std::optional<int64_t>(found.st_size) : std::nullopt;
  }
  if (errno != ENOENT && errno != ENOTDIR) {
    fail("ask for the size of", path, errno);
  }
  return std::nullopt;
}

void PosixStore::read(const std::string& path, int64_t begin, void* data, size_t size) {
  const Descriptor file(path, O_RDONLY, "read");
  auto* next = static_cast<char*>(data);
  const int64_t end = begin + static_cast<int64_t>(size);
  for (int64_t at = begin; at < end;) {
    const auto count = ::pread(file.get(), next, static_cast<size_t>(end - at), at);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail("read", path, errno);
    }
    TESSERA_CHECK_AS(DataError, count > 0, "[store] cannot read bytes ", begin, " to ", end, " of \"", path,
                     "\": it ends at byte ", at, "; accepted: a complete file");
    next += count;
    at += count;
  }
}

Listing PosixStore::list(const std::string& folder) {
  Listing found;
  std::error_code failed;
  auto entry = std::filesystem::directory_iterator(folder, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    auto& names = entry->is_directory(failed) ? found.folders : found.files;
    names.push_back(entry->path().filename().string());
  }
  if (failed) {
    fail("list", folder, failed.value());
  }
  std::sort(found.files.begin(), found.files.end());
  std::sort(found.folders.begin(), found.folders.end());
  return found;
}

void PosixStore::remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0) {
    fail("remove", path, errno);
  }
}

void PosixStore::make_folder(const std::string& folder) {
  struct stat found{};
  std::error_code ignored;  // mkdir says what is wrong
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), ignored);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    const int error = errno;
    if (error != EEXIST || ::stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
      fail("make the folder", folder, error);
    }
  }
}

void PosixStore::remove_folder(const std::string& folder) {
  if (::rmdir(folder.c_str()) != 0) {
    fail("remove the folder", folder, errno);
  }
}

void PosixStore::sync_folder(const std::string& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY, "synchronise the folder");
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) {  // EINVAL: a file system that has nothing to synchronise
    fail("synchronise the folder", folder, errno);
  }
}

}  // namespace tessera::checkpoint
