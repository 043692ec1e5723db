#include "tessera/comm/core/gather_numbers.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace tessera::comm {

std::vector<int64_t> gather_numbers(Communicator& ranks, int64_t mine) {
  std::vector<int64_t> all;
  for (const auto& each : gather_numbers(ranks, {mine}, std::vector<int64_t>(static_cast<size_t>(ranks.size()), 1))) {
    all.push_back(each.front());
  }
  return all;
}

std::vector<std::vector<int64_t>> gather_numbers(Communicator& ranks, const std::vector<int64_t>& mine,
                                                 const std::vector<int64_t>& counts) {
  const auto numbers = at::TensorOptions().dtype(at::kLong);
  std::vector<at::Tensor> outputs;
  for (const int64_t count : counts) {
    outputs.push_back(at::zeros({count}, numbers));  // in an imagined job nothing comes
  }
  const auto own = at::empty({static_cast<int64_t>(mine.size())}, numbers);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<int64_t>());
  ranks.all_gather(outputs, own)->wait();
  std::vector<std::vector<int64_t>> all;
  for (const auto& output : outputs) {
    const auto* begin = output.const_data_ptr<int64_t>();
    all.emplace_back(begin, begin + output.numel());
  }
  return all;
}

}  // namespace tessera::comm
