#include "tessera/nn/key_value_cache.h"

#include <algorithm>

namespace tessera::nn {
namespace {

// The same content with room for `length` positions.
at::Tensor with_room(const at::Tensor& old, const at::Tensor& like, int64_t used, int64_t length) {
  auto sizes = like.sizes().vec();
  sizes[2] = length;
  auto wider = like.new_empty(sizes);
  if (used > 0) {
    wider.narrow(2, 0, used).copy_(old.narrow(2, 0, used));
  }
  return wider;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> LayerCache::append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t added = k.size(2), after = length_ + added;
  if (!keys_.defined() || keys_.size(2) < after) {
    constexpr int64_t kLeast = 16;
    const auto room = std::max({after, 2 * length_, kLeast});
    keys_ = with_room(keys_, k, length_, room);
    values_ = with_room(values_, v, length_, room);
  }
  keys_.narrow(2, length_, added).copy_(k);
  values_.narrow(2, length_, added).copy_(v);
  length_ = after;
  return {keys_.narrow(2, 0, after), values_.narrow(2, 0, after)};
}

LayerCache& KeyValueCache::layer(size_t at) {
  if (at >= layers_.size()) {
    layers_.resize(at + 1);
  }
  return layers_[at];
}

}  // namespace tessera::nn
