#include "tessera/comm/processes/shared_segments.h"

#include <algorithm>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/processes/sockets.h"

namespace tessera::comm {
namespace {

// Before what a segment holds: a token that tells it from what another process has open by the same number.
constexpr int64_t kTokenPage = 4096;

// A file without a name.
class File {
 public:
  explicit File(int file) : file_(file) {}
  ~File() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

// `kTokenPage + bytes` of a file, behind the head; null where that fails.
std::byte* map(const File& file, int64_t bytes) {
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(kTokenPage + bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory) + kTokenPage;
}

void unmap(std::byte* segment, int64_t bytes) {
  if (segment) {
    ::munmap(segment - kTokenPage, static_cast<size_t>(kTokenPage + bytes));
  }
}

uint64_t& token_of(std::byte* segment) { return *reinterpret_cast<uint64_t*>(segment - kTokenPage); }

// That of file `number` of process `process`; null if that is something else.
std::byte* find(int64_t process, int64_t number, uint64_t token, int64_t bytes) {
  const File file(::open(c10::str("/proc/", process, "/fd/", number).c_str(), O_RDWR | O_CLOEXEC));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || status.st_size != kTokenPage + bytes) {
    return nullptr;
  }
  std::byte* segment = map(file, bytes);
  if (segment && token_of(segment) != token) {
    unmap(segment, bytes);
    return nullptr;
  }
  return segment;
}

// All members' `mine`, by position.
std::vector<std::vector<int64_t>> exchanged(const C10dMessages& messages, const Round& round, uint64_t hash,
                                            const std::vector<int64_t>& mine) {
  const at::Tensor own = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<int64_t>());
  std::vector<at::Tensor> all(messages.size(), own);
  messages.job().run(round, [&](Works& works) {
    for (int64_t i = 0; i < messages.size(); ++i) {
      if (i == messages.member()) {
        continue;
      }
      all[i] = at::empty_like(own);
      works.push_back(messages.receive(i, all[i], hash));
      works.push_back(messages.send(i, own, hash));
    }
  });
  std::vector<std::vector<int64_t>> result;
  for (const at::Tensor& each : all) {
    result.emplace_back(each.const_data_ptr<int64_t>(), each.const_data_ptr<int64_t>() + mine.size());
  }
  return result;
}

}  // namespace

SharedSegments::SharedSegments(int64_t members, int64_t bytes)
    : bytes_(bytes), segments_(static_cast<size_t>(members)) {}

SharedSegments::~SharedSegments() {
  for (std::byte* segment : segments_) {
    unmap(segment, bytes_);
  }
}

std::unique_ptr<SharedSegments> SharedSegments::open(const C10dMessages& messages, const Round& round, uint64_t hash,
                                                     int64_t bytes) {
  std::unique_ptr<SharedSegments> opened(new SharedSegments(messages.size(), bytes));
  std::vector<std::byte*>& segments = opened->segments_;
  const File file(::memfd_create("tessera", MFD_CLOEXEC));
  const uint64_t token = random_token();
  if (::ftruncate(file.get(), kTokenPage + bytes) == 0) {
    segments[messages.member()] = map(file, bytes);
  }
  if (std::byte* own = segments[messages.member()]) {
    token_of(own) = token;
  }
  const auto told = exchanged(messages, round, hash, {::getpid(), file.get(), static_cast<int64_t>(token)});
  for (int64_t i = 0; i < messages.size(); ++i) {
    if (i != messages.member()) {
      segments[i] = find(told[i][0], told[i][1], static_cast<uint64_t>(told[i][2]), bytes);
    }
  }
  const bool sees_all = std::find(segments.begin(), segments.end(), nullptr) == segments.end();
  for (const auto& answer : exchanged(messages, round, base::hash_combine(hash, 1), {sees_all})) {
    if (!answer[0]) {
      return nullptr;
    }
  }
  return opened;
}

}  // namespace tessera::comm
