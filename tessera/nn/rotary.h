// Rotary position embedding, in the half-split arrangement of Hugging Face's Llama weights.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// The angle of (position, frequency) as its cosine and sine, both [length, head_dim / 2].
struct RotaryTables {
  at::Tensor cos;
  at::Tensor sin;
};

// Tables for `length` positions from `first` on and frequencies theta^(-2i / head_dim); angles are computed in float64,
// then cast.
RotaryTables rotary_tables(int64_t length, int64_t head_dim, double theta, const at::TensorOptions& options,
                           int64_t first = 0);

// x of [..., length, head_dim] with each pair (x[i], x[i + head_dim/2]) turned by its position's angle.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryTables& tables);

}  // namespace tessera::nn
