#include "tessera/data/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

// Closes the descriptor at the end of the scope; the mapping outlives it.
struct Descriptor {
  ~Descriptor() {
    if (number >= 0) {
      ::close(number);
    }
  }
  int number;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  TESSERA_CHECK_AS(DataError, file.number >= 0, "[data] cannot open \"", path, "\": ", std::strerror(errno),
                   "; give the path of a readable text file");
  struct stat info{};
  TESSERA_CHECK_AS(DataError, ::fstat(file.number, &info) == 0 && S_ISREG(info.st_mode), "[data] \"", path,
                   "\" is not a regular file; give the path of a text file");
  TESSERA_CHECK_AS(DataError, info.st_size > 0, "[data] \"", path,
                   "\" is empty; give the path of a file with text in it");
  const auto size = static_cast<size_t>(info.st_size);
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  TESSERA_CHECK_AS(DataError, start != MAP_FAILED, "[data] cannot map \"", path, "\": ", std::strerror(errno),
                   "; give the path of a readable text file");
  mapping_ = std::shared_ptr<const void>(start, [size](void* mapped) { ::munmap(mapped, size); });
  bytes_ = {static_cast<const uint8_t*>(start), size};
}

}  // namespace tessera::data
