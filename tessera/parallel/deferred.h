// Models that are described now and get their memory later.
#pragma once

#include <memory>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include "tessera/layout/spec.h"

namespace tessera::parallel {

// Records, while it lives, what the calling thread's constructors do to tensors, instead of doing it.
class DeferredScope {
 public:
  DeferredScope();
  ~DeferredScope();
  DeferredScope(const DeferredScope&) = delete;
  DeferredScope& operator=(const DeferredScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `make` (a model's constructor) without allocating: factories and initialisers are recorded, and `place` replays
// them on each rank's part, with the values of one-device initialisation bit for bit (generator `counter`, as seeded
// when `make` ran). Until then the model may be planned for, converted (`to`), initialised further and given to an
// optimizer; using a parameter, or reading a value, throws. Works outside of ranks too, for planning.
template <typename Make>
auto deferred(Make&& make) -> std::invoke_result_t<Make> {
  DeferredScope scope;
  return make();
}

// Whether the tensor is waiting for `place`.
bool is_deferred(const at::Tensor& tensor);

// A deferred tensor and the layout it is to get.
struct Materialization {
  at::Tensor tensor;
  layout::Placements placements;
};

// Replays the recordings and turns each tensor into a DTensor in place. Every rank allocates its own parts only, and so
// do temporaries that are made element by element, which die at their last use; what a constructor makes whole (`eye`,
// `arange`, `randperm`) or initialises through a slice along a cut dim is held whole for as long.
// Tensors that are not deferred are left alone. Collective over the mesh.
void materialize(const layout::Mesh& mesh, const std::vector<Materialization>& tensors);

}  // namespace tessera::parallel
