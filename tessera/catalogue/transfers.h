// What each rank sends and receives so that what one catalogue holds comes to where another one wants it.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/catalogue/catalogue.h"
#include "tessera/reshard/holdings.h"

namespace tessera::catalogue {

// The layout of a tensor that is written whole: On `rank`'s coordinate of every axis of its mesh. So it is one more
// layout of the mesh that it lies on, to which a redistribution leads as to any other, and not a mesh of its own for
// each owner. Throws if the mesh does not contain `rank`.
layout::Spec whole_at(const layout::Spec& spec, int64_t rank);

// The catalogue with each entry whole at its owner; the owners in the order of the entries.
Catalogue whole_at(const Catalogue& catalogue, const std::vector<int64_t>& owners);

// What one rank sends and receives of one tensor, and keeps (`from` and `to` are the rank itself). Boxes are in indices
// of the whole tensor; of interleaved cuts there is one for each run.
struct EntryTransfers {
  size_t index = 0;  // in the wanted catalogue
  reshard::RankTransfers transfers;
};

// The transfers of `rank`, in the order of the wanted entries, without those of which it neither has nor gets anything.
//
// Planned by each rank alone and alike: what one sends, the other receives, in one order. In time of what it holds and
// wants, and of a look at every entry. Every element that a rank is to hold comes exactly once, from a rank that holds
// it: the rank itself if it does, else a replica as reshard::Exchange says. Ranks and meshes of the two may differ.
// `found` may have more entries than are wanted. Throws if it lacks one (by name or alias), or has it with other sizes
// or another dtype.
std::vector<EntryTransfers> transfers_of(const Catalogue& found, const Catalogue& wanted, int64_t rank);

// Bytes of one rank.
struct Traffic {
  int64_t sent = 0, received = 0;  // to and from other ranks
  int64_t kept = 0;
  bool operator==(const Traffic&) const = default;
};

// Counted from the transfers of a rank.
Traffic traffic_of(const std::vector<EntryTransfers>& transfers, const Catalogue& wanted);

// Without planning: what `rank` receives of one tensor is what it is to hold less what it holds. And of all ranks
// together, in time of the ranks.
int64_t received_bytes(const layout::Spec& from, const layout::Spec& to, int64_t rank);
int64_t moved_bytes(const layout::Spec& from, const layout::Spec& to);

// Where a box of the whole tensor, as transfers have it, lies in the part of a rank that holds it: in indices of its
// local tensor. Throws if the rank does not hold all of it in one run of each dim.
reshard::Box local_box(const layout::Spec& spec, int64_t rank, const reshard::Box& box);

// A box that lies around `box` as the part of a rank does, also where the part's runs are apart in the tensor, or are
// of dims taken together: so it says where in the part's row-major order the elements of `box` are. Throws as
// local_box, which takes no such dims.
reshard::Box part_around(const layout::Spec& spec, int64_t rank, const reshard::Box& box);

}  // namespace tessera::catalogue
