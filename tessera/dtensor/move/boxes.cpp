#include "tessera/dtensor/move/boxes.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "tessera/base/error.h"

namespace tessera::dtensor {

using comm::Communicator;
using layout::Range;
using reshard::Box;

at::Tensor narrow_to(const at::Tensor& tensor, const Box& outer, const Box& inner) {
  at::Tensor part = tensor;
  for (size_t d = 0; d < outer.size(); ++d) {
    if (outer[d] == inner[d]) {
      continue;
    }
    const int64_t begin =
        inner[d].size() == 0 ? 0 : inner[d].begin - outer[d].begin;  // an empty part may stand anywhere
    part = part.narrow(static_cast<int64_t>(d), begin, inner[d].size());
  }
  return part;
}

std::vector<int64_t> sizes_of(const Box& box) {
  std::vector<int64_t> sizes;
  for (const Range& range : box) {
    sizes.push_back(range.size());
  }
  return sizes;
}

at::Tensor empty_box(const at::Tensor& like, const Box& box) { return at::empty(sizes_of(box), like.options()); }

at::Tensor folded(const at::Tensor& tensor, c10::IntArrayRef blocks) {
  std::vector<int64_t> sizes;
  int64_t at = 0;
  for (int64_t count : blocks) {
    at += count > 1 ? 1 : 0;
    sizes.push_back(count * tensor.size(at++));
  }
  return tensor.reshape(sizes);
}

namespace {

size_t position_of(const std::vector<int64_t>& ranks, int64_t rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  TESSERA_CHECK(found != ranks.end(), "[redistribute] rank ", rank,
                " is not a member of the mesh that holds the tensor; both meshes must view the same ranks");
  return static_cast<size_t>(found - ranks.begin());
}

}  // namespace

at::Tensor run_transfers(Communicator& group, const reshard::RankTransfers& transfers, const at::Tensor& local,
                         const Box& before, const std::optional<Box>& after) {
  const at::Tensor nothing = at::empty({0}, local.options());
  std::vector<at::Tensor> inputs(group.size(), nothing), outputs(group.size(), nothing);
  for (const reshard::Transfer& send : transfers.sends) {
    inputs[position_of(group.ranks(), send.to)] = narrow_to(local, before, send.box).contiguous();
  }
  for (const reshard::Transfer& receive : transfers.receives) {
    outputs[position_of(group.ranks(), receive.from)] = empty_box(local, receive.box);
  }
  group.all_to_all(outputs, inputs)->wait();
  if (!after) {
    return {};
  }
  at::Tensor result = empty_box(local, *after);
  for (const reshard::Transfer& receive : transfers.receives) {
    narrow_to(result, *after, receive.box).copy_(outputs[position_of(group.ranks(), receive.from)]);
  }
  return result;
}

}  // namespace tessera::dtensor
