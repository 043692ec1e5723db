// The key under which a rank's thread is intercepted.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera::dtensor {

// Note [Interception]. A rank thread (and a thread inside `deferred`) includes the out-of-core key DeferredInit in its
// dispatch state. The key falls through for every operator but those that have a kernel for it, so that others pay
// nothing: factories, which give DTensors inside a job and recordings inside `deferred`, random draws on plain tensors,
// which come from the rank's generator instead of libtorch's one generator per process, for which rank threads would
// race, and linear algebra, whose bits depend on the number of threads (Note [Threads]).
constexpr c10::DispatchKey kIntercept = c10::DispatchKey::DeferredInit;

// While it lives, factories and random operators on plain tensors are the local kernels' own and are not intercepted.
class LocalScope {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{kIntercept};
};

// Calls the operator with what stands below the intercepting key in its dispatch; for kernels of that key.
void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, std::vector<c10::IValue>* stack);

}  // namespace tessera::dtensor
