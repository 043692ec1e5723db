// Models that are described now and get their memory later.
#pragma once

#include <type_traits>

namespace tessera::parallel {

namespace detail {
// Records what constructors do to tensors instead of doing it.
class DeferredScope {
 public:
  DeferredScope();
  ~DeferredScope();
  DeferredScope(const DeferredScope&) = delete;
  DeferredScope& operator=(const DeferredScope&) = delete;
};
}  // namespace detail

// Runs `make` (a model's constructor) without allocating: factories and initialisers are recorded, and `parallelize` replays
// them on each rank's part, with the values of one-device initialisation bit for bit (generator `counter`).
template <typename Make>
auto deferred(Make&& make) -> std::invoke_result_t<Make> {
  detail::DeferredScope scope;
  return make();
}

}  // namespace tessera::parallel
