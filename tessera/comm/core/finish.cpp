#include "tessera/comm/core/finish.h"

#include <atomic>

#include "tessera/comm/core/stop.h"

namespace tessera::comm {

namespace {

std::atomic<uint64_t> the_finish_requests{0};
std::atomic<uint64_t> the_finishers{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

bool request_finish() {
  if (the_finishers.load() == 0) {
    request_stop();
    return false;
  }
  the_finish_requests.fetch_add(1);
  return true;
}

uint64_t finish_requests() { return the_finish_requests.load(); }

FinishScope::FinishScope() { the_finishers.fetch_add(1); }
FinishScope::~FinishScope() { the_finishers.fetch_sub(1); }

}  // namespace tessera::comm
