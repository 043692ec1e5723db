// Loading what other programs wrote, one whole tensor after another.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::checkpoint {

// Fills `targets`, DTensors or plain tensors that all ranks have alike, with what `read(i)` gives of the i-th: a whole,
// plain tensor of its sizes, cast to its dtype. One rank of its mesh calls `read`, each in its turn, and sends the
// others their parts: it holds one whole tensor and what it sends of it, the others neither. What came is held beside
// the targets until all of it has: whatever throws before leaves them as they were. Throws DataError for other sizes,
// or as `read` does. Collective over the job.
void load_by_one(const std::vector<at::Tensor>& targets, const std::function<at::Tensor(size_t)>& read);

}  // namespace tessera::checkpoint
