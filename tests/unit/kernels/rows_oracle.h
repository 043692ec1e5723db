// What the row kernels must give, bit for bit: the definition in plain loops over one row. Includes nothing of the
// kernels.
//
// exp and log come from the caller: their values are another test's matter.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::kernels::oracle {

template <typename T>
using Row = std::vector<T>;
template <typename T>
using Function = std::function<T(T)>;

// left + right, split at the largest power of two below the count; +0 for none.
template <typename T>
T tree(const Row<T>& values);

// In leaves of `leaf`: sixteen chains and their tree in a leaf, the tree over the leaves.
template <typename T>
T sum(const Row<T>& x, int64_t leaf);
template <typename T>
T dot(const Row<T>& a, const Row<T>& b, int64_t leaf);

template <typename T>
T max(const Row<T>& x);
template <typename T>
T exp_sum(const Row<T>& x, T max, int64_t leaf, const Function<T>& exp);
template <typename T>
Row<T> softmax(const Row<T>& x, const Function<T>& exp);
template <typename T>
Row<T> log_softmax(const Row<T>& x, const Function<T>& exp, const Function<T>& log);
template <typename T>
Row<T> softmax_backward(const Row<T>& grad, const Row<T>& y);
template <typename T>
Row<T> log_softmax_backward(const Row<T>& grad, const Row<T>& y, const Function<T>& exp);
template <typename T>
Row<T> cross_entropy_backward(const Row<T>& x, T max, T sum, int64_t target, T grad, const Function<T>& exp);

// Empty weight or bias: none.
template <typename T>
struct Normed {
  Row<T> y;
  T mean = 0, rstd = 0;
};
template <typename T>
Normed<T> rms_norm(const Row<T>& x, const Row<T>& weight, T eps);
template <typename T>
Row<T> rms_norm_backward(const Row<T>& grad, const Row<T>& x, const Row<T>& weight, T rstd);
template <typename T>
Normed<T> layer_norm(const Row<T>& x, const Row<T>& weight, const Row<T>& bias, T eps);
template <typename T>
Row<T> layer_norm_backward(const Row<T>& grad, const Row<T>& x, const Row<T>& weight, T mean, T rstd);

// total + the chain of fma(grads[t], factors[t]); of grads alone if there are no factors.
template <typename T>
T add_sample(T total, const Row<T>& grads, const Row<T>& factors);

}  // namespace tessera::kernels::oracle
