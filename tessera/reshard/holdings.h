// Who holds which slice of a tensor before and after: the one engine behind moves between any two layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/layout/spec.h"

namespace tessera::reshard {

using layout::Coord;
using layout::Mesh;
using layout::Placement;
using layout::Placements;
using layout::Range;
using layout::Spec;

// A slice of a tensor: one run for each dim, in global indices. The box of a 0-d tensor has no dims and one element.
using Box = std::vector<Range>;

int64_t numel(const Box& box);

// What two boxes share: runs of no elements where they share nothing.
Box intersect(const Box& a, const Box& b);

// Elements [begin, end) of a box in row-major order, as boxes in that order: at most two of each dim and one. None
// where begin == end.
std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end);

// Which box every rank of a mesh holds. A value; thread-safe.
//
// An axis that is Partial counts as Replicate: what its ranks hold are addends of one box, and are moved like copies.
// So does one that is On, but for `of_holders`. Of a cut that is interleaved, or that spans dims, a rank holds several
// boxes.
class Holdings {
 public:
  // Throws where Spec::make would.
  Holdings(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes);
  explicit Holdings(const Spec& spec);

  // Those of the ranks that hold a part, alone: where axes are On, `mesh()` has the other axes and the ranks there.
  static Holdings of_holders(const Spec& spec);

  const Mesh& mesh() const { return mesh_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }

  // The box of `rank`; throws if the mesh does not contain it, or if a cut is interleaved or spans dims.
  Box box_of(int64_t rank) const;

  // The boxes of `rank` in index order, of every cut: one for each block of the dims that are cut in blocks; of dims
  // that a cut spans as many as their run is. Throws if the mesh does not contain it. They may be empty.
  std::vector<Box> boxes_of(int64_t rank) const;

  // The same as cells of one grid, as files have the slices of a tensor: cut where the boxes of any rank begin or end
  // along a dim. Other boxes than those of cuts that span dims are cells already.
  std::vector<Box> cells_of(int64_t rank) const;
  std::vector<Box> cells_in(const std::vector<Box>& boxes) const;

  // Calls `visit(coord, overlap)` for each distinct non-empty piece of `wanted`, in index order: the ranks that hold it
  // are those at `coord`, whatever their coordinates on `free_axes()` (0 in `coord`). Takes time in the number of
  // pieces only. Where cuts span dims: in the order of the coordinates, in time of all of them.
  void for_each_piece(const Box& wanted, const std::function<void(const Coord&, const Box&)>& visit) const;

  // The axes that do not cut: ranks that differ along them only hold the same box.
  const std::vector<int64_t>& free_axes() const { return free_axes_; }

  // Of the ranks that hold what the one at `coord` holds, the one whose turn it is: they take turns 0, 1, ... in the
  // order of the mesh, again and again.
  int64_t copy_in_turn(Coord coord, int64_t turn) const;

 private:
  void visit_dim(size_t dim, const Box& wanted, Coord& coord, Box& overlap,
                 const std::function<void(const Coord&, const Box&)>& visit) const;
  void cut_dim(size_t dim, size_t level, Range held, const Box& wanted, Coord& coord, Box& overlap,
               const std::function<void(const Coord&, const Box&)>& visit) const;

  void for_each_part(const std::function<void(const Coord&, const Box&)>& visit) const;

  // Of dims that a cut spans, the run of all of them together, in the last; of one in blocks, the run in the first.
  Box runs_at(const Coord& coord) const;
  std::vector<Box> boxes_at(const Coord& coord) const;
  Coord coord_of(int64_t rank) const;

  Mesh mesh_;
  Placements placements_;
  std::vector<int64_t> sizes_;
  layout::BoxForm form_;
  std::vector<int64_t> runs_;                  // what is cut of each dim
  std::vector<std::vector<int64_t>> axes_of_;  // of each dim, slowest first
  std::vector<int64_t> free_axes_;
};

// One box that goes from one rank to another (or stays: from == to).
struct Transfer {
  int64_t from = 0;
  int64_t to = 0;
  Box box;
  bool operator==(const Transfer&) const = default;
};

// The transfers of one rank, none empty: what it sends, by receiver, and what it receives, by sender; several between
// two ranks in index order, the same on both. What it keeps stands in both.
struct RankTransfers {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
};

// Moves a tensor from one layout to another, of the same or of other ranks. A value; thread-safe.
//
// Every rank receives each element of its new box exactly once: from itself where it holds it already; else, of the
// holders of a copy, from the one that stands where the receiver stands on the axes that replicate, or, for a receiver
// outside the old mesh, from the holders in turn. Between two ranks at most one box moves, of interleaved cuts one for
// each pair of blocks that meet.
class Exchange {
 public:
  // Throws if the sizes differ.
  Exchange(Holdings from, Holdings to);

  const Holdings& from() const { return from_; }
  const Holdings& to() const { return to_; }

  // In time of the ranks that this one meets, not of all pairs. A rank outside a mesh has no part on that side.
  RankTransfers transfers_of(int64_t rank) const;

  // All transfers, receiver by receiver in the order of the new mesh.
  std::vector<Transfer> all() const;

  // Elements that a rank receives from others; summed over all ranks. In time of the boxes of a rank, and of the ranks.
  int64_t lacking(int64_t rank) const;
  int64_t moved() const;

  // Whether every rank holds afterwards what it held before.
  bool is_identity() const;

 private:
  std::vector<Transfer> receives_of(int64_t rank) const;
  std::vector<Transfer> sends_of(int64_t rank) const;
  void send_by_piece(int64_t rank, const Coord& own, std::vector<Transfer>& sends) const;
  void send_by_receiver(int64_t rank, const Coord& own, std::vector<Transfer>& sends) const;
  int64_t sender(Coord piece, int64_t receiver, const Coord& receiver_at) const;

  Holdings from_;
  Holdings to_;
};

}  // namespace tessera::reshard
