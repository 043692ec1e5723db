#include "tessera/train/gather_texts.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "tessera/comm/context.h"

namespace tessera::train {

std::vector<std::string> gather_texts(const std::string& mine) {
  auto& world = *comm::RankContext::require().world;
  const auto members = static_cast<size_t>(world.size());
  std::vector<at::Tensor> sizes, texts;
  for (size_t i = 0; i < members; ++i) {
    sizes.push_back(at::empty({1}, at::TensorOptions().dtype(at::kLong)));
  }
  world.all_gather(sizes, at::full({1}, static_cast<int64_t>(mine.size()), at::TensorOptions().dtype(at::kLong)))->wait();
  for (const auto& size : sizes) {
    texts.push_back(at::empty({*size.const_data_ptr<int64_t>()}, at::TensorOptions().dtype(at::kByte)));
  }
  const auto own = at::empty({static_cast<int64_t>(mine.size())}, at::TensorOptions().dtype(at::kByte));
  std::copy(mine.begin(), mine.end(), static_cast<char*>(own.mutable_data_ptr()));
  world.all_gather(texts, own)->wait();
  std::vector<std::string> all;
  for (const auto& text : texts) {
    all.emplace_back(static_cast<const char*>(text.const_data_ptr()), text.nbytes());
  }
  return all;
}

}  // namespace tessera::train
