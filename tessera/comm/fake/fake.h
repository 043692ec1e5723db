// Ranks that are only imagined: any size, no data.
#pragma once

#include <memory>

#include "tessera/comm/core/communicator.h"

namespace tessera::comm {

// `rank` of an imagined world of `size` ranks. Every collective checks its arguments, succeeds at once and moves
// nothing: outputs keep what they held, but that the other ranks of a gather have the whole numbers of this one. Any
// device.
std::shared_ptr<Communicator> make_fake_world(int64_t size, int64_t rank);

}  // namespace tessera::comm
