#include "tessera/dtensor/move/pieces.h"

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include "tessera/base/error.h"
#include "tessera/base/values.h"

namespace tessera::dtensor {

namespace {

using layout::Range;
using Piece = Pieces::Piece;

// A contiguous tensor of the elements of `memory` from `offset` on; past the dispatcher, for there may be many.
at::Tensor run_of(const at::Tensor& memory, c10::IntArrayRef sizes, int64_t offset) {
  at::Tensor run = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(memory.storage()),
                                                            memory.key_set(), memory.dtype());
  c10::TensorImpl* impl = run.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  impl->set_storage_offset(memory.storage_offset() + offset);
  return run;
}

// Calls visit(first element) for each run of the piece in its tensor, in the order of the piece.
template <typename Visit>
void for_each_run(const Piece& piece, c10::IntArrayRef strides, Visit visit) {
  const auto outer = static_cast<size_t>(piece.slices.back().dim);  // dims outside of a run
  c10::DimVector index(outer, 0);
  int64_t at = piece.offset;
  for (int64_t i = 0; i < piece.count; ++i) {
    visit(at);
    for (size_t d = outer; d-- > 0;) {
      at += strides[d];
      if (++index[d] < piece.sizes[d]) {
        break;
      }
      at -= index[d] * strides[d];
      index[d] = 0;
    }
  }
}

// Its bytes may be copied as they are, and libtorch would not share them out to threads.
bool is_copied_as_bytes(const at::Tensor& whole, const Piece& piece) {
  return whole.is_cpu() && whole.is_contiguous() && !whole.is_conj() && !whole.is_neg() &&
         (piece.count * piece.length < at::internal::GRAIN_SIZE || at::get_num_threads() == 1);
}

void copy_out(const at::Tensor& whole, c10::IntArrayRef strides, const Piece& piece, const at::Tensor& to) {
  if (!base::has_values()) {
    return;
  }
  if (!is_copied_as_bytes(whole, piece)) {
    to.copy_(narrowed(whole, piece.slices));
    return;
  }
  const auto item = static_cast<int64_t>(whole.element_size()), bytes = piece.length * item;
  const char* from = static_cast<const char*>(whole.const_data_ptr());
  char* next = static_cast<char*>(to.mutable_data_ptr());
  for_each_run(piece, strides, [&](int64_t at) {
    std::memcpy(next, from + at * item, bytes);
    next += bytes;
  });
}

void copy_in(const at::Tensor& from, const Piece& piece, c10::IntArrayRef strides, const at::Tensor& whole) {
  if (!base::has_values()) {
    return;
  }
  if (!is_copied_as_bytes(whole, piece)) {
    narrowed(whole, piece.slices).copy_(from);
    return;
  }
  const auto item = static_cast<int64_t>(whole.element_size()), bytes = piece.length * item;
  const char* next = static_cast<const char*>(from.const_data_ptr());
  char* to = static_cast<char*>(whole.mutable_data_ptr());
  for_each_run(piece, strides, [&](int64_t at) {
    std::memcpy(to + at * item, next, bytes);
    next += bytes;
  });
}

bool lies_in_one_run(const Piece& piece, bool is_contiguous) {
  return piece.length == 0 || piece.count == 0 || (is_contiguous && piece.count == 1);
}

}  // namespace

std::vector<int64_t> sizes_of(const reshard::Box& box) {
  std::vector<int64_t> sizes;
  sizes.reserve(box.size());
  for (const Range& range : box) {
    sizes.push_back(range.size());
  }
  return sizes;
}

Slices slices_of(const reshard::Box& outer, const reshard::Box& inner) {
  Slices slices;
  for (size_t d = 0; d < outer.size(); ++d) {
    if (outer[d] != inner[d]) {
      // An empty part may stand anywhere.
      const int64_t begin = std::clamp<int64_t>(inner[d].begin - outer[d].begin, 0, outer[d].size());
      slices.push_back({static_cast<int64_t>(d), begin, inner[d].size()});
    }
  }
  return slices;
}

at::Tensor narrowed(const at::Tensor& tensor, const Slices& slices) {
  at::Tensor part = tensor;
  for (const Slice& slice : slices) {
    part = part.narrow(slice.dim, slice.begin, slice.length);
  }
  return part;
}

Pieces::Pieces(reshard::Box whole) : whole_(std::move(whole)) {
  const std::vector<int64_t> sizes = sizes_of(whole_);
  sizes_.assign(sizes.begin(), sizes.end());
  strides_ = c10::contiguous_strides(sizes_);
}

void Pieces::add(int64_t member, const reshard::Box& box) {
  Piece piece{.member = member, .slices = slices_of(whole_, box), .sizes = sizes_};
  for (const Slice& slice : piece.slices) {
    piece.sizes[slice.dim] = slice.length;
    piece.offset += slice.begin * strides_[slice.dim];
  }
  const int64_t inner = piece.slices.empty() ? 0 : piece.slices.back().dim;
  for (size_t d = 0; d < sizes_.size(); ++d) {
    (static_cast<int64_t>(d) < inner ? piece.count : piece.length) *= piece.sizes[d];
  }
  all_.push_back(std::move(piece));
}

std::vector<at::Tensor> room_for(const Pieces& pieces, const at::Tensor& whole, int64_t members) {
  TESSERA_ASSERT(pieces.all().empty() || whole.sizes() == pieces.sizes(), "pieces of a tensor of sizes ",
                 pieces.sizes(), " from one of sizes ", whole.sizes());
  const bool is_contiguous = whole.is_contiguous();
  int64_t copied = 0;
  for (const Piece& piece : pieces.all()) {
    copied += lies_in_one_run(piece, is_contiguous) ? 0 : piece.count * piece.length;
  }
  const bool all_have_one = static_cast<int64_t>(pieces.all().size()) == members;
  at::Tensor copies;
  if (copied > 0 || !all_have_one) {
    copies = at::empty({copied}, whole.options());
  }
  std::vector<at::Tensor> tensors;
  if (!all_have_one) {
    tensors.assign(members, copied == 0 ? copies : copies.narrow(0, 0, 0));
  }
  tensors.resize(members);
  int64_t next = 0;
  for (const Piece& piece : pieces.all()) {
    const bool is_run = lies_in_one_run(piece, is_contiguous);
    tensors[piece.member] = run_of(is_run ? whole : copies, piece.sizes, is_run ? piece.offset : next);
    next += is_run ? 0 : piece.count * piece.length;
  }
  return tensors;
}

std::vector<at::Tensor> packed(const Pieces& pieces, const at::Tensor& whole, int64_t members) {
  std::vector<at::Tensor> tensors = room_for(pieces, whole, members);
  const bool is_contiguous = whole.is_contiguous();
  for (const Piece& piece : pieces.all()) {
    if (!lies_in_one_run(piece, is_contiguous)) {
      copy_out(whole, pieces.strides(), piece, tensors[piece.member]);
    }
  }
  return tensors;
}

void unpack(const Pieces& pieces, const std::vector<at::Tensor>& values, at::Tensor& whole) {
  for (const Piece& piece : pieces.all()) {
    if (!lies_in_one_run(piece, true)) {
      copy_in(values[piece.member], piece, pieces.strides(), whole);
    }
  }
}

}  // namespace tessera::dtensor
