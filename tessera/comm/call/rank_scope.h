// What surrounds the body of every rank, whether it is a thread or a process.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace tessera::comm {

// The thread-local state of a rank, while it lives: autograd's own threads are off, and every hook of add_rank_hook was
// called (their guards are dropped last first). Its collectives are recorded. Wants the rank's ContextGuard around it.
// From the first one on the process keeps freed memory (base/freed_memory.h).
class RankScope {
 public:
  RankScope();
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  bool multithreading_before_;
  std::vector<std::shared_ptr<void>> guards_;
};

// How long the calling rank waits in one collective; outside of a rank, as long as one does that is not told.
std::chrono::milliseconds deadline_of_rank();

// The threads that OpenMP gives a loop at most (OMP_THREAD_LIMIT). oneDNN shares the parts of a product in bfloat16 out
// among the threads that were set: those above the limit do not come, and their parts are silently never computed.
int most_intra_op_threads();

// The intra-op threads of the calling thread, `count` of them or as many as OpenMP gives. Only waits when the count
// changes.
void set_intra_op_threads(int count);

// Throws `error` anew with `rank N: ` before its message. A RankFailed, which names its rank, and a type that cannot be
// made from a message pass unchanged.
[[noreturn]] void rethrow_of(int64_t rank, const std::exception_ptr& error);

}  // namespace tessera::comm
