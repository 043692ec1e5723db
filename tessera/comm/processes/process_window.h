// Reads of the memory of other processes of this machine.
#pragma once

#include <memory>

#include "tessera/comm/core/communicator.h"

namespace tessera::comm {

// For members that are processes of one user on one machine: a read is one copy, by the system (process_vm_readv), of
// memory that nobody had to share. Null on all members if one may not read another's: in a container of its own, or
// where the system forbids it. Where Linux asks for a process's leave (Yama), all of the user's have it while this is
// open. Collective over the group.
std::unique_ptr<Window> open_process_window(Communicator& group);

}  // namespace tessera::comm
