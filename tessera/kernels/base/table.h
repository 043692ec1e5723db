// What each instruction set implements: one table of functions for each element type. Internal to this floor.
//
// Shapes, orders of sums and meanings are those of the public functions of the same names, which cut the work over
// threads and call these on the pieces. Functions of a range [begin, end) of columns leave the others alone.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels {

// Optimizers for one step, the hyperparameters folded into factors of the element type. `sign` is that of the gradient.
template <typename T>
struct AdamWFactors {
  T sign, decay, in_gradient, average_weight, beta2, square_weight, root_correction, eps, step_size;
};
template <typename T>
struct SgdFactors {
  T sign, lr, weight_decay, momentum, grad_weight;
  bool nesterov;
};
template <typename T>
struct LionFactors {
  T sign, lr, decay, beta1, grad_weight1, beta2, grad_weight2;
};

// One row of attention: its first `visible` keys are seen, where `allowed` (if any) says so. Pointers may be null.
template <typename T>
struct AttentionRow {
  int64_t n, visible;
  T scale;
  const bool* allowed;
  const T* added;
  const T* keep;
};

template <typename T>
struct Table {
  using In = Rows<const T>;
  using Out = Rows<T>;
  using Map = void (*)(int64_t n, const T* x, T* y);
  using MapBackward = void (*)(int64_t n, const T* grad, const T* x, T* dx);

  Map exp, log, tanh, erf, sigmoid, silu, gelu, gelu_tanh, add_zero;
  MapBackward silu_backward, gelu_backward, gelu_tanh_backward;
  void (*dropout)(int64_t n, const T* x, const bool* keep, T scale, T* y);

  void (*row_sum)(Shape, int64_t leaf, In x, T* out);
  void (*row_squares)(Shape, int64_t leaf, In x, T* out);
  void (*row_max)(Shape, In x, T* out);
  void (*row_exp_sum)(Shape, int64_t leaf, In x, const T* max, T* out);
  void (*softmax)(Shape, In x, Out y);
  void (*log_softmax)(Shape, In x, Out y);
  void (*softmax_backward)(Shape, In grad, In y, Out dx);
  void (*log_softmax_backward)(Shape, In grad, In y, Out dx);
  void (*cross_entropy_backward)(Shape, In x, const T* max, const T* sum, const T* grad, Out dx);

  // x: scores to weights; grad: that of the weights to that of the scores. The sum by which, or which, a row was
  // normed.
  T (*attention_weights)(const AttentionRow<T>&, T* x);
  T (*attention_slopes)(const AttentionRow<T>&, const T* weights, T* grad);
  bool (*is_finite)(int64_t n, const T* x);
  bool (*has_minus_zero)(int64_t n, const T* x);

  void (*rms_norm)(Shape, In x, const T* weight, T eps, Out y, T* rstd);
  void (*rms_norm_backward)(Shape, In grad, In x, const T* weight, const T* rstd, Out dx);
  void (*layer_norm)(Shape, In x, const T* weight, const T* bias, T eps, Out y, T* mean, T* rstd);
  void (*layer_norm_backward)(Shape, In grad, In x, const T* weight, const T* mean, const T* rstd, Out dx);

  // One sample's tokens: out += the chain of each column.
  void (*column_sum)(Shape tokens, In grad, T* out);
  void (*rms_norm_weight)(Shape tokens, In grad, In x, const T* rstd, T* weight);
  void (*layer_norm_weight)(Shape tokens, In grad, In x, const T* mean, const T* rstd, T* weight);
  void (*picked_sum)(int64_t count, const int64_t* picked, int64_t n, In grad, T* out);

  // `largest` may be null.
  void (*adamw)(int64_t n, const AdamWFactors<T>&, T* parameter, const T* grad, T* average, T* square, T* largest);
  void (*sgd)(int64_t n, const SgdFactors<T>&, T* parameter, const T* grad);
  void (*sgd_momentum)(int64_t n, const SgdFactors<T>&, T* parameter, const T* grad, T* momentum);
  void (*lion)(int64_t n, const LionFactors<T>&, T* parameter, const T* grad, T* average);
  void (*ema)(int64_t n, T weight, T* average, const T* value);
};

// The table of one instruction set; defined in table_<isa>.cpp for float and double.
template <typename T>
const Table<T>& scalar_table();
template <typename T>
const Table<T>& avx2_table();
template <typename T>
const Table<T>& avx512_table();

// The table of current_isa().
template <typename T>
const Table<T>& table();

}  // namespace tessera::kernels
