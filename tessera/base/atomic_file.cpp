#include "tessera/base/atomic_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::base {

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), temporary_(path + "." + std::to_string(::getpid()) + ".tmp") {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    fail("cannot write");
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(const char* what) const {
  TESSERA_THROW(DataError, "[file] ", what, " \"", path_, "\": ", std::strerror(errno),
                "; accepted: a path in a folder that exists, may be written to, and has room");
}

void AtomicFile::write(const void* data, size_t size) {
  const auto* next = static_cast<const char*>(data);
  while (size > 0) {
    const auto written = ::write(descriptor_, next, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail("writing failed:");
    }
    next += written;
    size -= static_cast<size_t>(written);
  }
}

// The folder is synchronised too, as far as it lets itself: without that the rename may be lost with the power.
void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) {
    fail("writing failed:");
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("cannot replace");
  }
  ::close(std::exchange(descriptor_, -1));
  const auto folder = std::filesystem::absolute(path_).parent_path();
  if (const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

}  // namespace tessera::base
