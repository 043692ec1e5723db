// Parts of tensors, as the members of a group send and get them: cut out, packed, and laid together.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <c10/util/SmallVector.h>

#include "tessera/reshard/holdings.h"

namespace tessera::dtensor {

std::vector<int64_t> sizes_of(const reshard::Box& box);

// A run of one dim of a tensor.
struct Slice {
  int64_t dim = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

// The part of a tensor that these runs leave; whole along all other dims. Dims rise.
using Slices = c10::SmallVector<Slice, 1>;

// The part `inner` of a tensor that holds `outer`.
Slices slices_of(const reshard::Box& outer, const reshard::Box& inner);

// That part, as a view.
at::Tensor narrowed(const at::Tensor& tensor, const Slices& slices);

// What each member of a group has of one tensor.
class Pieces {
 public:
  struct Piece {
    int64_t member = 0;  // its position in the group
    Slices slices;
    c10::DimVector sizes;
    // Where it lies if the tensor is contiguous: `count` runs of `length` elements, the first at `offset`.
    int64_t offset = 0, count = 1, length = 1;
  };

  Pieces() = default;
  // Of a tensor that holds `whole`.
  explicit Pieces(reshard::Box whole);

  // Members that have none get a tensor of sizes {0}.
  void add(int64_t member, const reshard::Box& box);

  c10::IntArrayRef sizes() const { return sizes_; }  // of the tensor
  c10::IntArrayRef strides() const { return strides_; }
  const std::vector<Piece>& all() const { return all_; }

 private:
  reshard::Box whole_;
  c10::DimVector sizes_, strides_;
  std::vector<Piece> all_;
};

// The pieces of `whole`, one tensor for each of the `members`, contiguous: where a piece lies in one run of `whole` a
// view of it, else a copy; all copies stand in one memory.
std::vector<at::Tensor> packed(const Pieces& pieces, const at::Tensor& whole, int64_t members);

// The same with undefined values instead of copies; then the copies, once they have their values, laid into `whole`.
std::vector<at::Tensor> room_for(const Pieces& pieces, const at::Tensor& whole, int64_t members);
void unpack(const Pieces& pieces, const std::vector<at::Tensor>& values, at::Tensor& whole);

}  // namespace tessera::dtensor
