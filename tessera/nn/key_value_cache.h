// What attention has seen already, so that a text that grows is not computed again from its start.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Keys and values of one attention layer, of all positions so far: [batch, heads, length, head_dim]. One for each text
// or batch of texts of equal length; for inference, under NoGradGuard. Not thread-safe.
class LayerCache {
 public:
  int64_t length() const { return length_; }

  // Adds the positions of k and v, and returns all keys and values. The views are valid until the next call. Room is
  // doubled as it is needed, so that adding one position after the other copies each a constant number of times.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& k, const at::Tensor& v);

 private:
  at::Tensor keys_, values_;  // with room to spare
  int64_t length_ = 0;
};

// One LayerCache for each layer of a model, made at its first use.
class KeyValueCache {
 public:
  // Positions that the model has seen.
  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length(); }

  LayerCache& layer(size_t at);

  void clear() { layers_.clear(); }

 private:
  std::vector<LayerCache> layers_;
};

}  // namespace tessera::nn
