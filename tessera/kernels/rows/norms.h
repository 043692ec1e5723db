// RMSNorm and LayerNorm of rows, and sums over the tokens of samples.
//
// Sums over a row are those of rows.h with one leaf. A sum over tokens: in a sample one chain over its tokens in order,
// from +0; the samples' totals are added in order onto what the output holds, which the caller sets to +0 before the
// first. So a batch may be cut anywhere between samples. T is float or double. `weight` and `bias` may be null: ones,
// none. An output may be an input of the same call, except that no total may be.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels {

// Token t of sample s is row s * tokens + t.
struct Samples {
  int64_t samples = 0;
  int64_t tokens = 0;
};

// rstd[r] = 1 / sqrt(squares / n + eps); y = (x * rstd[r]) * weight.
template <typename T>
void rms_norm(Shape shape, Rows<const T> x, const T* weight, double eps, Rows<T> y, T* rstd);

// With g = grad * weight and c = the sum of g * x by fma: dx = g * rstd - x * (((c * rstd) * rstd) * (rstd / n)), the
// last by fma.
template <typename T>
void rms_norm_backward(Shape shape, Rows<const T> grad, Rows<const T> x, const T* weight, const T* rstd, Rows<T> dx);

// total[i] += for each sample the chain of fma(grad, x * rstd).
template <typename T>
void add_rms_norm_weight(Samples samples, int64_t n, Rows<const T> grad, Rows<const T> x, const T* rstd, T* total);

// mean[r] = sum / n; rstd[r] = 1 / sqrt(squares of (x - mean) / n + eps); y = fma((x - mean) * rstd, weight, bias).
template <typename T>
void layer_norm(Shape shape, Rows<const T> x, const T* weight, const T* bias, double eps, Rows<T> y, T* mean, T* rstd);

// With g = grad * weight and z = (x - mean) * rstd: dx = ((g - sum of g / n) - z * (sum of g * z / n)) * rstd, by fma.
template <typename T>
void layer_norm_backward(Shape shape, Rows<const T> grad, Rows<const T> x, const T* weight, const T* mean,
                         const T* rstd, Rows<T> dx);

// total[i] += for each sample the chain of fma(grad, (x - mean) * rstd).
template <typename T>
void add_layer_norm_weight(Samples samples, int64_t n, Rows<const T> grad, Rows<const T> x, const T* mean,
                           const T* rstd, T* total);

// total[i] += for each sample the chain of grad: the gradient of a bias.
template <typename T>
void add_column_sum(Samples samples, int64_t n, Rows<const T> grad, T* total);

}  // namespace tessera::kernels
