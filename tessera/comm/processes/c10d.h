// Ranks as processes: collectives over a c10d process group.
#pragma once

#include <memory>
#include <optional>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/core/communicator.h"
#include "tessera/comm/processes/c10d_messages.h"
#include "tessera/comm/processes/process_job.h"

namespace tessera::comm {

// The communicator over all ranks of `job`. `backend` connects the same ranks in the same order, and sends tagged
// messages between CPU tensors (Gloo, MPI); anything else stays untouched by us and may use it too, with collectives.
//
// Every collective is made of the backend's tagged messages, and every reduction is computed here, member 0 first, by
// the code of the thread backend: the bits are those of rank threads, whatever the lists' shapes, dtypes or NaNs, and
// the same in every run. A library's own all-reduce has another order, no bool or half, no uneven lists.
//
//   all_gather, all_to_all, broadcast   one message for each pair of members, straight between the tensors
//   reduce_scatter                      the parts to their owner, combined there
//   all_reduce, merge                   up to 64 KiB: everything to everyone, combined everywhere; above: each member
//   combines
//                                       one part and hands it to all: 2T(p-1)/p bytes a member; a scattered merge hands
//                                       none on
//   barrier                             a message of one byte for each pair
//   split                               no connection and no store: the members' messages carry the group in their tags
//
// Reductions travel in pieces, combined as they come (c10d_reduce.h). In a job on one machine all of these but a
// broadcast travel through shared memory instead (shared_board.h), where all members of the group can see it: they
// agree on that in the group's first one. So do messages (shared_mail.h), which lie there before their receivers ask
// for them; the job's ranks agree on that when they join.
//
// Messages of one call carry a fingerprint of it (group, round, collective, op, root, dtype, sizes, and the hash of the
// program so far) in their tag, so that calls of different programs never meet and checking costs no message; the waits
// that follow are explained by ProcessJob. A tag has 31 bits; messages with equal tags arrive in order, so that two
// different calls can meet only if their fingerprints collide.
//
// Collectives are complete when issued; a receive completes in its wait. A send copies its tensor.
std::shared_ptr<Communicator> join_c10d(std::shared_ptr<ProcessJob> job, c10::intrusive_ptr<c10d::Backend> backend);

// The backend under a communicator of join_c10d, for what only the library has; null for any other.
c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator);

// The members of a communicator of join_c10d as a group that sends messages alone, as members on several machines do:
// for tests and measurements. Collective, as a split. Throws for any other communicator.
std::shared_ptr<Communicator> split_messages_only(Communicator& communicator);

// What a communicator of join_c10d stands on, for one that agrees over it and moves tensors another way
// (c10d_device.h).
struct C10dGroup {
  const C10dMessages& messages;
  uint64_t key;     // of the group, equal on all members; 0: the world
  int64_t& rounds;  // collectives so far
};

// Of a communicator of join_c10d, while it lives; nothing for any other.
std::optional<C10dGroup> group_of(Communicator& communicator);

// A Gloo backend over all ranks of `job`: over loopback if they share a machine, else over the interface that
// GLOO_SOCKET_IFNAME names or the one of the host name. Collective. Throws CommError where the library was built
// without Gloo's headers.
c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePtr& store, const ProcessJob& job);

}  // namespace tessera::comm
