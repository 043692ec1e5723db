// What libtorch's warnings say on threads that listen.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace tessera::support {

// Threads hand theirs over while they hold a guard: `const c10::WarningUtils::WarningHandlerGuard guard(&heard);`.
class HeardWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex_);
    said_.push_back(warning.msg());
  }
  // After the threads that hand them over.
  const std::vector<std::string>& said() const { return said_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> said_;
};

}  // namespace tessera::support
