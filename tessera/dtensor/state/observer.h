// Watching the operators of one rank from outside.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Is told of every operator on DTensors that has run on one rank, on that rank's thread, those inside a decomposition
// one by one. Not told: operators that were only noted on a value that waits (see pending.h), those that run when it is
// merged, which are not at the same place on every layout, and those whose results an earlier run of a body kept.
// Watch::observer names it.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // An operator is called. The last one that began ends first. `args` are as the program gave them.
  virtual void on_begin(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args) {}
  // May run operators and collectives if it does so on every rank; it is not told of those. A handle that waits is
  // among the results as such.
  virtual void on_results(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> results) = 0;
  // Not an operator's: what the program gave this rank as its part of a DTensor (`from_local`), or as rows of a batch
  // (`batch`). As on_results.
  virtual void on_given(RankState& state, const char* how, const at::Tensor& given) {}
  // The call is over. Without on_results it threw, was noted or taken only, or was made of other operators.
  virtual void on_end(RankState& state, const OpInfo& info) noexcept {}
};

// One call, from its begin to its end.
class ObservedCall {
 public:
  ObservedCall(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args)
      : state_(state), info_(info), observer_(state.watch.observer()) {
    if (C10_UNLIKELY(observer_ != nullptr)) {
      observer_->on_begin(state, info, args);
    }
  }
  ~ObservedCall() {
    if (C10_UNLIKELY(observer_ != nullptr)) {
      observer_->on_end(state_, info_);
    }
  }
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

 private:
  RankState& state_;
  const OpInfo& info_;
  OpObserver* observer_;
};

// While it lives, nobody watches.
class Unobserved {
 public:
  explicit Unobserved(RankState& state) : state_(state), observer_(state.watch.set_observer(nullptr)) {}
  ~Unobserved() { state_.watch.set_observer(observer_); }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

 private:
  RankState& state_;
  OpObserver* observer_;
};

// Tells the observer, if there is one, what the program gave. Other tensors than DTensors are nothing.
inline void tell_given(RankState& state, const char* how, const at::Tensor& given) {
  OpObserver* observer = state.watch.observer();
  if (C10_UNLIKELY(observer != nullptr) && is_dtensor(given)) {
    const Unobserved unobserved(state);
    observer->on_given(state, how, given);
  }
}

}  // namespace tessera::dtensor
