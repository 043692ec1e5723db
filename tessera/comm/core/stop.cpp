#include "tessera/comm/core/stop.h"

#include <atomic>

#include "tessera/base/error.h"
#include "tessera/comm/core/errors.h"

namespace tessera::comm {

namespace {

std::atomic<uint64_t> the_stop_requests{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

void request_stop() { the_stop_requests.fetch_add(1); }

uint64_t stop_requests() { return the_stop_requests.load(); }

void throw_if_stopped_since(uint64_t before) {
  if (stop_requests() != before) {
    TESSERA_THROW(Stopped, "stopped by a signal");
  }
}

}  // namespace tessera::comm
