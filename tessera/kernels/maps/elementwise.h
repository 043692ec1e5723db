// Functions of single elements, with the same bits in a vector's middle and tail and on every instruction set.
//
// n elements at any alignment, float or double. An output may be an input of the same call, not a shifted overlap of
// it. Errors, in units of the last place of the exact value: exp and log 1; all others 2, in their far tails too.
// Derivatives: 5 units of the largest of their terms, or of 1024 times the smallest normal number.
// Denormal inputs and results are kept.
// Infinities give what libtorch gives: NaN for silu, gelu and gelu_tanh of minus infinity and for their derivatives at
// both. NaN gives NaN, of no particular payload.
#pragma once

#include <cstdint>

namespace tessera::kernels {

enum class Function : uint8_t { kExp, kLog, kTanh, kErf, kSigmoid, kSilu, kGelu, kGeluTanh };
enum class Derivative : uint8_t { kSilu, kGelu, kGeluTanh };

// y = function(x). kGelu is x Phi(x); kGeluTanh its approximation x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
template <typename T>
void map(Function function, int64_t n, const T* x, T* y);

// dx = grad * function'(x).
template <typename T>
void map_backward(Derivative derivative, int64_t n, const T* grad, const T* x, T* dx);

// y = (x * keep) * scale with keep as 0 or 1: dropout by a mask made elsewhere, and its backward. As in libtorch an
// infinity that is dropped gives NaN.
template <typename T>
void dropout(int64_t n, const T* x, const bool* keep, double scale, T* y);

}  // namespace tessera::kernels
