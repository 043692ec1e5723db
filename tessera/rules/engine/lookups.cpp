#include "tessera/rules/engine/lookups.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include "tessera/base/error.h"

namespace tessera::rules {

Window make_window(const at::Tensor& index, layout::Range range, int64_t size, int64_t elsewhere) {
  if (index.is_cpu() && index.numel() > 0) {
    const auto [least, largest] = at::aminmax(index);
    TESSERA_CHECK(least.item<int64_t>() >= -size && largest.item<int64_t>() < size, "[index] indices from ",
                  least.item<int64_t>(), " to ", largest.item<int64_t>(), " into a dim of size ", size);
  }
  const at::Tensor from_begin = at::where(index.lt(0), index.add(size), index).sub_(range.begin);
  Window window;
  window.outside = from_begin.lt(0).logical_or_(from_begin.ge(range.size()));
  window.index = from_begin.masked_fill(window.outside, elsewhere);
  return window;
}

at::Tensor with_spare(const at::Tensor& self, const std::vector<int64_t>& dims) {
  std::vector<int64_t> pad(2 * self.dim(), 0);
  for (int64_t dim : dims) {
    pad[2 * (self.dim() - 1 - dim) + 1] = 1;
  }
  return at::constant_pad_nd(self, pad);
}

at::Tensor without_spare(at::Tensor padded, const std::vector<int64_t>& dims) {
  for (int64_t dim : dims) {
    padded = padded.narrow(dim, 0, padded.size(dim) - 1);
  }
  return padded.contiguous();
}

std::vector<int64_t> sizes_of(const std::vector<layout::Range>& ranges) {
  std::vector<int64_t> sizes;
  for (const layout::Range& range : ranges) {
    sizes.push_back(range.size());
  }
  return sizes;
}

}  // namespace tessera::rules
