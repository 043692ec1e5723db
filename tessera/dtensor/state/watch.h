// What a rank is asked to look at while its operators run.
#pragma once

#include <cstdint>
#include <utility>

#include "tessera/dtensor/state/call_flags.h"

namespace tessera::dtensor {

// What happens when an operator needs a redistribution that the program did not write.
enum class Mode : uint8_t { kImplicit, kExplicit, kWarn };

class OpObserver;

// Makes every call of the rank slow while it is asked for anything. Every setter gives back what was there.
class Watch {
 public:
  explicit Watch(RankFlags& flags) : flags_(flags) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Mode mode() const { return mode_; }
  Mode set_mode(Mode mode) {
    flags_.set(kAsksForMoves, mode != Mode::kImplicit);
    return std::exchange(mode_, mode);
  }

  // Whether plain operands are compared across ranks.
  bool checks_plain() const { return flags_.has(kChecksPlain); }
  bool set_checks_plain(bool on) {
    const bool before = checks_plain();
    flags_.set(kChecksPlain, on);
    return before;
  }

  // Not owned; null: nobody watches. See observer.h.
  OpObserver* observer() const { return observer_; }
  OpObserver* set_observer(OpObserver* observer) {
    flags_.set(kObserved, observer != nullptr);
    return std::exchange(observer_, observer);
  }

 private:
  RankFlags& flags_;
  Mode mode_ = Mode::kImplicit;
  OpObserver* observer_ = nullptr;
};

}  // namespace tessera::dtensor
