// The kernels that libtorch's dispatcher holds for us.
#pragma once

namespace tessera::dtensor {

// Registers every kernel, once per process; later calls return at once. Everything public in this floor calls it.
//
// Note [Direct kernels]. A backend fallback alone would lose to composite-explicit kernels (empty_like and friends),
// which then return plain tensors without a word. So the dispatcher's list is walked and the kernel registered directly
// for every operator that takes a tensor and is not composite-implicit; composite-implicit ones decompose, except those
// that have a rule and a CPU kernel of their own, and the few whose decomposition destroys layout knowledge (linear,
// matmul, scaled_dot_product_attention).
void ensure_registered();

}  // namespace tessera::dtensor
