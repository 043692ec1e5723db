#include "tessera/comm/core/gather_texts.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace tessera::comm {

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < ranks.size(); ++i) {
    all.push_back(at::empty({1}, at::TensorOptions().dtype(at::kLong)));
  }
  ranks.all_gather(all, at::full({1}, static_cast<int64_t>(mine.size()), at::TensorOptions().dtype(at::kLong)))->wait();
  std::vector<int64_t> sizes;
  for (const auto& size : all) {
    sizes.push_back(*size.const_data_ptr<int64_t>());
  }
  return gather_texts(ranks, mine, sizes);
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
