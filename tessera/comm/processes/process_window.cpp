#include "tessera/comm/processes/process_window.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/core/gather_numbers.h"
#include "tessera/comm/processes/sockets.h"

namespace tessera::comm {
namespace {

// What one call of the system takes.
constexpr size_t kMostRuns = 1024;
constexpr size_t kMostBytes = size_t{1} << 30;

// As many bytes as there are, unless the system says no.
bool try_read(int64_t process, const std::vector<Get>& gets) {
  size_t next = 0, done = 0;  // a get, and bytes of it
  std::vector<iovec> to, from;
  while (true) {
    to.clear();
    from.clear();
    size_t bytes = 0;
    for (size_t i = next, skipped = done; i < gets.size() && to.size() < kMostRuns && bytes < kMostBytes; ++i) {
      const size_t length = std::min(gets[i].bytes - skipped, kMostBytes - bytes);
      if (length > 0) {
        to.push_back({gets[i].to + skipped, length});
        from.push_back({const_cast<std::byte*>(gets[i].from) + skipped, length});
        bytes += length;
      }
      skipped = 0;
    }
    if (bytes == 0) {
      return true;
    }
    const ssize_t got =
        ::process_vm_readv(static_cast<pid_t>(process), to.data(), to.size(), from.data(), from.size(), 0);
    if (got <= 0) {
      return false;
    }
    for (done += static_cast<size_t>(got); next < gets.size() && done >= gets[next].bytes; ++next) {
      done -= gets[next].bytes;
    }
  }
}

// Short gets, one behind the other, are read as one with what is between them: the system looks up the pages of each
// run, which takes longer than to copy one, and longer still while others read the same page. Less than a page between
// two of them is memory wherever both are.
constexpr size_t kShort = size_t{16} << 10;
constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kTogether = size_t{256} << 10;  // stays in a cache until it is copied

// How many of the gets from `first` on are read as one; at least 1.
size_t count_together(const std::vector<Get>& gets, size_t first) {
  const std::byte* begin = gets[first].from;
  const std::byte* end = begin + gets[first].bytes;
  size_t next = first + 1;
  for (; next < gets.size() && gets[next - 1].bytes <= kShort; ++next) {
    const Get& get = gets[next];
    if (get.bytes > kShort || get.from < end || get.from >= end + kPage || get.from + get.bytes > begin + kTogether) {
      break;
    }
    end = get.from + get.bytes;
  }
  return next - first;
}

// As try_read.
bool try_get(int64_t process, const std::vector<Get>& gets, std::vector<std::byte>& together) {
  std::vector<Get> apart;
  for (size_t i = 0; i < gets.size();) {
    const size_t count = count_together(gets, i);
    if (count == 1) {
      apart.push_back(gets[i++]);
      continue;
    }
    const std::byte* begin = gets[i].from;
    together.resize(kTogether);
    const auto bytes = static_cast<size_t>(gets[i + count - 1].from + gets[i + count - 1].bytes - begin);
    if (!try_read(process, {{begin, together.data(), bytes}})) {
      return false;
    }
    for (const size_t until = i + count; i < until; ++i) {
      std::memcpy(gets[i].to, together.data() + (gets[i].from - begin), gets[i].bytes);
    }
  }
  return try_read(process, apart);
}

class ProcessWindow : public Window {
 public:
  explicit ProcessWindow(Communicator& group) : group_(group), processes_(gather_numbers(group, ::getpid())) {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // fails where nobody asks for it
  }

  ~ProcessWindow() override { ::prctl(PR_SET_PTRACER, 0); }

  // Whether this member reads what the others have. Collective.
  bool sees_all() {
    const auto own = static_cast<int64_t>(random_token());
    const auto tokens = gather_numbers(group_, own);
    const auto addresses = gather_numbers(group_, reinterpret_cast<intptr_t>(&own));
    bool sees = true;
    for (size_t i = 0; i < tokens.size() && sees; ++i) {
      int64_t seen = 0;
      sees = try_read(processes_[i], {{reinterpret_cast<const std::byte*>(addresses[i]),
                                       reinterpret_cast<std::byte*>(&seen), sizeof(seen)}}) &&
             seen == tokens[i];
    }
    const auto answers = gather_numbers(group_, sees);  // after which `own` may go
    return std::count(answers.begin(), answers.end(), 0) == 0;
  }

  void get(int64_t member, const std::vector<Get>& gets) override {
    if (member == group_.rank()) {
      return copy_gets(gets);
    }
    if (!try_get(processes_.at(static_cast<size_t>(member)), gets, together_)) {
      const std::string why = std::strerror(errno);
      group_.barrier();  // where the member is gone, this says how
      TESSERA_CHECK_AS(CommError, false, "[get] rank ", group_.ranks()[static_cast<size_t>(member)], " over ",
                       group_.name(), " has no memory where it was said to be: ", why, " (rank ",
                       group_.ranks()[static_cast<size_t>(group_.rank())],
                       "); accepted: what a member said it holds, while it holds it");
    }
  }

 private:
  Communicator& group_;
  const std::vector<int64_t> processes_;
  std::vector<std::byte> together_;  // what is read as one
};

}  // namespace

std::unique_ptr<Window> open_process_window(Communicator& group) {
  auto window = std::make_unique<ProcessWindow>(group);
  return window->sees_all() ? std::move(window) : nullptr;
}

}  // namespace tessera::comm
