// The threads of a job's ranks: which are still there, and the end of the process where one does not come back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/comm/core/context.h"
#include "tessera/comm/threads/thread_group.h"

namespace tessera::comm {

// What one run_ranks knows of its threads. A rank that is in one long call (an allocation, a product, a foreign
// library) hears neither of another's failure nor of a signal, and a thread cannot be ended alone. Thread-safe.
class RankThreads {
 public:
  // `grace` and `where` are those of RunOptions.
  RankThreads(std::shared_ptr<ThreadJob> job, std::chrono::milliseconds grace, std::function<std::string()> where)
      : job_(std::move(job)), grace_(grace), where_(std::move(where)) {}

  // On the thread of a rank, before its body and after it. `context` stays until then.
  void begin(const RankContext& context);
  void end(int64_t rank);

  // Waits until `count` ranks have ended. Ends the process when the job has failed, or was asked to stop, longer ago
  // than the grace: stderr gets the first error and the ranks that are still there, the flight recorders are left; exit
  // code 1, of a stop 130.
  void wait(int64_t count);

 private:
  bool is_over() const;
  [[noreturn]] void end_process() const;
  std::string where_they_are() const;

  const std::shared_ptr<ThreadJob> job_;
  const std::chrono::milliseconds grace_;
  const std::function<std::string()> where_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, const RankContext*> running_;
  int64_t ended_ = 0;
};

}  // namespace tessera::comm
