// Rank threads that compute on one device.
#pragma once

#include <vector>

#include "tessera/comm/call/call.h"

namespace tessera::comm {

// Throws if rank threads cannot make this call: on neither the CPU nor a GPU, or a merge of tensors that are not on the
// CPU (`exact` computes there).
void verify_device(const Call& call);

// Throws if not all tensors of the calls are on one device: each GPU has a stream of its own, and rank threads meet on
// one.
void verify_one_device(const std::vector<const Call*>& calls);

// What rank threads give a device runs in the order in which they meet, as they share its default stream. A rank whose
// current stream is another one waits here until the device has done all that it was given: before it meets the others
// and after. Nothing on the CPU.
void settle_stream(const Call& call);

}  // namespace tessera::comm
