// Bodies of the program that run now and whose operators are looked at: what their results become is decided there.
#pragma once

#include <utility>

#include "tessera/dtensor/state/call_flags.h"

namespace tessera::dtensor {

class KeptResults;
class SavedResults;

// The innermost of each kind, not owned; null: there is none. Makes every call of the rank slow while there is one.
// Every setter gives back what was there.
class Bodies {
 public:
  explicit Bodies(RankFlags& flags) : flags_(flags) {}
  Bodies(const Bodies&) = delete;
  Bodies& operator=(const Bodies&) = delete;

  // Of recomputed bodies that keep some results; see dispatch/kept_results.h.
  KeptResults* keeping() const { return keeping_; }
  KeptResults* set_keeping(KeptResults* results) { return changed(std::exchange(keeping_, results)); }

  // Of bodies whose saved results go elsewhere; see dispatch/saved_results.h.
  SavedResults* saving() const { return saving_; }
  SavedResults* set_saving(SavedResults* results) { return changed(std::exchange(saving_, results)); }

 private:
  template <typename Results>
  Results* changed(Results* before) {
    flags_.set(kInBody, keeping_ || saving_);
    return before;
  }

  RankFlags& flags_;
  KeptResults* keeping_ = nullptr;
  SavedResults* saving_ = nullptr;
};

}  // namespace tessera::dtensor
