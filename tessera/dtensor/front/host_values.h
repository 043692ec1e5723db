// Operators made of others that read numbers of an operand from memory: lengths, batch sizes, places to cut at.
#pragma once

namespace tessera::dtensor {

// Registers them for DTensors, above autograd: that operand becomes a plain tensor first. Called once, with the other
// kernels.
void register_host_values(class KernelRegistry& registry);

}  // namespace tessera::dtensor
