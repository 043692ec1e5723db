// libtorch's operators on imagined tensors. Internal to this floor.
#pragma once

#include <c10/core/DispatchKey.h>

namespace tessera::watch {

// What a thread includes while it imagines (Note [Imagined]).
constexpr c10::DispatchKey kImagined = c10::DispatchKey::Fake;

// At the first call: what every operator does at that key. Thread-safe.
void register_imagined_ops();

}  // namespace tessera::watch
