#include "tessera/comm/sums/tensor_views.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace tessera::comm {

at::Tensor bytes_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return at::empty({0}, tensor.options().dtype(at::kByte));
  }
  return tensor.detach().view({-1}).view(at::kByte);
}

std::vector<at::Tensor> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) {
    result.push_back(bytes_of(tensor));
  }
  return result;
}

std::vector<at::Tensor> flat(at::TensorList tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.detach().view({-1}));
  }
  return result;
}

std::vector<at::Tensor> narrow(const std::vector<at::Tensor>& tensors, const layout::Range& range) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.narrow(0, range.begin, range.size()));
  }
  return result;
}

std::optional<at::Tensor> joined(const std::vector<at::Tensor>& tensors) {
  const auto& first = tensors.front();
  const auto begin = first.storage_offset();
  auto end = begin;
  for (const auto& tensor : tensors) {
    if (!tensor.is_alias_of(first) || tensor.scalar_type() != first.scalar_type() || tensor.storage_offset() != end) {
      return std::nullopt;
    }
    end += tensor.numel();
  }
  return first.detach().as_strided({end - begin}, {1}, begin);
}

bool is_even(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == tensors.front().numel(); });
}

}  // namespace tessera::comm
