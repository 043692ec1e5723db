#include "tessera/base/aside.h"

#include <future>
#include <thread>

namespace tessera::base {

bool run_aside(std::function<void()> body, std::chrono::milliseconds limit) {
  std::packaged_task<void()> task(std::move(body));
  const auto done = task.get_future();
  std::thread(std::move(task)).detach();
  return done.wait_for(limit) == std::future_status::ready;
}

}  // namespace tessera::base
