// Parts of tensors as boxes: cut out, sent, and laid together.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/communicator.h"
#include "tessera/reshard/holdings.h"

namespace tessera::dtensor {

// The part of `tensor`, which holds `outer`, that holds `inner`: a view.
at::Tensor narrow_to(const at::Tensor& tensor, const reshard::Box& outer, const reshard::Box& inner);

std::vector<int64_t> sizes_of(const reshard::Box& box);

// Undefined values, with the dtype and device of `like`.
at::Tensor empty_box(const at::Tensor& like, const reshard::Box& box);

// A rank's part of the tensor that unfolded() took apart: its dims are put together again.
at::Tensor folded(const at::Tensor& tensor, c10::IntArrayRef blocks);

// Sends what the transfers say of `local`, which holds the box `before`, and makes the box `after` of what comes:
// undefined on a rank that gets none. Collective over `group`.
at::Tensor run_transfers(comm::Communicator& group, const reshard::RankTransfers& transfers, const at::Tensor& local,
                         const reshard::Box& before, const std::optional<reshard::Box>& after);

}  // namespace tessera::dtensor
