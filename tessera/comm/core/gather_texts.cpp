#include "tessera/comm/core/gather_texts.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "tessera/comm/core/gather_numbers.h"

namespace tessera::comm {

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine) {
  return gather_texts(ranks, mine, gather_numbers(ranks, static_cast<int64_t>(mine.size())));
}

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine, const std::vector<int64_t>& sizes) {
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const auto own = at::empty({static_cast<int64_t>(mine.size())}, bytes);
  std::copy(mine.begin(), mine.end(), static_cast<char*>(own.mutable_data_ptr()));
  std::vector<at::Tensor> texts;
  for (const int64_t size : sizes) {
    texts.push_back(size == own.numel() ? own.clone() : at::empty({size}, bytes));
  }
  ranks.all_gather(texts, own)->wait();
  std::vector<std::string> all;
  for (const auto& text : texts) {
    all.emplace_back(static_cast<const char*>(text.const_data_ptr()), text.nbytes());
  }
  return all;
}

}  // namespace tessera::comm
