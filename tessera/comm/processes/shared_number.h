// Waiting for what another process does.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::comm {

// A number in memory that processes share: one of them counts it up, others wait for it. It wraps.
class SharedNumber {
 public:
  uint32_t get() const { return value_.load(std::memory_order_acquire); }

  // What was written before is there for who reads the new value.
  void set(uint32_t value) {
    value_.store(value, std::memory_order_release);
    ::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Waits until `is_ready`, which changes only as the number does. False if `is_aborted` became true before.
  template <typename Ready>
  bool wait_until(Ready is_ready, const std::atomic<bool>& is_aborted) const {
    const auto looks_until = std::chrono::steady_clock::now() + kLooks;
    while (true) {
      const uint32_t seen = get();
      if (is_ready()) {
        return true;
      }
      if (is_aborted) {
        return false;
      }
      if (std::chrono::steady_clock::now() < looks_until) {
        std::this_thread::yield();
      } else {
        ::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &kSleeps, nullptr, 0);
      }
    }
  }

 private:
  // How long a process looks before it sleeps, and how long it sleeps before it looks whether the wait was aborted.
  static constexpr std::chrono::microseconds kLooks{20};
  static constexpr timespec kSleeps{.tv_sec = 0, .tv_nsec = 20'000'000};

  std::atomic<uint32_t> value_;
};

}  // namespace tessera::comm
