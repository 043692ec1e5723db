// Who writes what: one rank for each tensor that is written whole, one for each slice of those written in slices.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/catalogue/catalogue.h"

namespace tessera::catalogue {

// The ranks that hold elements of a tensor, in ascending order; of one without elements those that hold a part. In time
// of the ranks of its mesh.
std::vector<int64_t> holders_of(const layout::Spec& spec);

// The rank that writes each entry whole, in the order of the entries: the largest first, each by that of its holders
// which has the fewest bytes so far (longest processing time). Of equally large ones the first name comes first, of
// equally loaded ranks the lowest. Every rank finds the same without asking.
//
// Of the last tensor that a rank takes, its smallest: it writes at most the mean of what the holders of that tensor
// write in all, and (1 - 1/holders) times the tensor. Where all ranks hold a piece of everything, that is its share and
// less than one tensor, and the most that a rank writes is at most 4/3 of what the best choice would leave it (Graham).
// No choice is always within some per cent of the share: three tensors of one size on two ranks.
std::vector<int64_t> owners_of(const Catalogue& catalogue);

// The rank that writes each slice: ranks that differ only along axes which do not cut hold one slice, and one of these
// replicas writes it. Which one turns from slice to slice and from tensor to tensor, so that replicas of equal slices
// write alike: those of one mesh, the same free axes, to within one slice. A value; thread-safe.
class SliceOwners {
 public:
  explicit SliceOwners(const Catalogue& catalogue);

  // The rank that writes the slice of entry `index` that `rank` holds; -1 if it holds no elements of it.
  int64_t owner(size_t index, int64_t rank) const;

 private:
  std::vector<layout::Spec> specs_;
  std::vector<int64_t> turns_;  // of each entry: the replica that writes the first slice
};

}  // namespace tessera::catalogue
