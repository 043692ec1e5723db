#include "rows_oracle.h"

#include <cmath>
#include <limits>

namespace tessera::kernels::oracle {
namespace {

template <typename T>
T tree_of(const Row<T>& values, size_t lo, size_t hi) {
  if (hi - lo == 1) {
    return values[lo];
  }
  size_t half = 1;
  while (half * 2 < hi - lo) {
    half *= 2;
  }
  return tree_of(values, lo, lo + half) + tree_of(values, lo + half, hi);
}

// The sum over elements 0 .. n-1 of lane = step(lane, i).
template <typename T, typename Step>
T sum_steps(size_t n, int64_t leaf, const Step& step) {
  Row<T> leaves;
  for (size_t begin = 0; begin < n || begin == 0; begin += static_cast<size_t>(leaf)) {
    Row<T> lanes(16, T(0));
    for (size_t i = begin; i < n && i - begin < static_cast<size_t>(leaf); ++i) {
      T& lane = lanes[(i - begin) % 16];
      lane = step(lane, i);
    }
    leaves.push_back(tree(lanes));
    if (n - begin <= static_cast<size_t>(leaf)) {
      break;
    }
  }
  return tree(leaves);
}

constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();

template <typename T>
T weight_at(const Row<T>& weight, size_t i) {
  return weight.empty() ? T(1) : weight[i];
}

}  // namespace

template <typename T>
T tree(const Row<T>& values) {
  return values.empty() ? T(0) : tree_of(values, 0, values.size());
}

template <typename T>
T sum(const Row<T>& x, int64_t leaf) {
  return sum_steps<T>(x.size(), leaf, [&](T lane, size_t i) { return lane + x[i]; });
}

template <typename T>
T dot(const Row<T>& a, const Row<T>& b, int64_t leaf) {
  return sum_steps<T>(a.size(), leaf, [&](T lane, size_t i) { return std::fma(a[i], b[i], lane); });
}

template <typename T>
T max(const Row<T>& x) {
  T largest = -std::numeric_limits<T>::infinity();
  for (T value : x) {
    if (value > largest) {
      largest = value;
    }
  }
  return largest == T(0) ? T(0) : largest;
}

template <typename T>
T exp_sum(const Row<T>& x, T max, int64_t leaf, const Function<T>& exp) {
  return sum_steps<T>(x.size(), leaf, [&](T lane, size_t i) { return lane + exp(x[i] - max); });
}

template <typename T>
Row<T> softmax(const Row<T>& x, const Function<T>& exp) {
  const T top = max(x);
  const T total = exp_sum(x, top, kWhole, exp);
  Row<T> y;
  for (T value : x) {
    y.push_back(exp(value - top) / total);
  }
  return y;
}

template <typename T>
Row<T> log_softmax(const Row<T>& x, const Function<T>& exp, const Function<T>& log) {
  const T top = max(x);
  const T logs = log(exp_sum(x, top, kWhole, exp));
  Row<T> y;
  for (T value : x) {
    y.push_back((value - top) - logs);
  }
  return y;
}

template <typename T>
Row<T> softmax_backward(const Row<T>& grad, const Row<T>& y) {
  const T total = dot(grad, y, kWhole);
  Row<T> dx;
  for (size_t i = 0; i < y.size(); ++i) {
    dx.push_back(y[i] * (grad[i] - total));
  }
  return dx;
}

template <typename T>
Row<T> log_softmax_backward(const Row<T>& grad, const Row<T>& y, const Function<T>& exp) {
  const T total = sum(grad, kWhole);
  Row<T> dx;
  for (size_t i = 0; i < y.size(); ++i) {
    dx.push_back(std::fma(exp(y[i]), -total, grad[i]));
  }
  return dx;
}

template <typename T>
Row<T> cross_entropy_backward(const Row<T>& x, T max, T sum, int64_t target, T grad, const Function<T>& exp) {
  Row<T> dx;
  const T factor = grad / sum;
  for (size_t i = 0; i < x.size(); ++i) {
    const T direct = exp(x[i] - max) * factor;
    dx.push_back(static_cast<int64_t>(i) == target ? direct - grad : direct);
  }
  return dx;
}

template <typename T>
Normed<T> rms_norm(const Row<T>& x, const Row<T>& weight, T eps) {
  Normed<T> out;
  out.rstd = T(1) / std::sqrt(dot(x, x, kWhole) / static_cast<T>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) {
    out.y.push_back((x[i] * out.rstd) * weight_at(weight, i));
  }
  return out;
}

template <typename T>
Row<T> rms_norm_backward(const Row<T>& grad, const Row<T>& x, const Row<T>& weight, T rstd) {
  Row<T> weighted, dx;
  for (size_t i = 0; i < x.size(); ++i) {
    weighted.push_back(grad[i] * weight_at(weight, i));
  }
  const T along = ((dot(weighted, x, kWhole) * rstd) * rstd) * (rstd / static_cast<T>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    dx.push_back(std::fma(x[i], -along, weighted[i] * rstd));
  }
  return dx;
}

template <typename T>
Normed<T> layer_norm(const Row<T>& x, const Row<T>& weight, const Row<T>& bias, T eps) {
  Normed<T> out;
  const T count = static_cast<T>(x.size());
  out.mean = sum(x, kWhole) / count;
  Row<T> centred;
  for (T value : x) {
    centred.push_back(value - out.mean);
  }
  out.rstd = T(1) / std::sqrt(dot(centred, centred, kWhole) / count + eps);
  for (size_t i = 0; i < x.size(); ++i) {
    out.y.push_back(std::fma(centred[i] * out.rstd, weight_at(weight, i), bias.empty() ? T(-0.0) : bias[i]));
  }
  return out;
}

template <typename T>
Row<T> layer_norm_backward(const Row<T>& grad, const Row<T>& x, const Row<T>& weight, T mean, T rstd) {
  const T count = static_cast<T>(x.size());
  Row<T> weighted, normal, dx;
  for (size_t i = 0; i < x.size(); ++i) {
    weighted.push_back(grad[i] * weight_at(weight, i));
    normal.push_back((x[i] - mean) * rstd);
  }
  const T plain = sum(weighted, kWhole) / count;
  const T along = dot(weighted, normal, kWhole) / count;
  for (size_t i = 0; i < x.size(); ++i) {
    dx.push_back(std::fma(normal[i], -along, weighted[i] - plain) * rstd);
  }
  return dx;
}

template <typename T>
T add_sample(T total, const Row<T>& grads, const Row<T>& factors) {
  T chain = 0;
  for (size_t t = 0; t < grads.size(); ++t) {
    chain = factors.empty() ? chain + grads[t] : std::fma(grads[t], factors[t], chain);
  }
  return total + chain;
}

#define TESSERA_INSTANTIATE(T)                                                                 \
  template T tree(const Row<T>&);                                                              \
  template T sum(const Row<T>&, int64_t);                                                      \
  template T dot(const Row<T>&, const Row<T>&, int64_t);                                       \
  template T max(const Row<T>&);                                                               \
  template T exp_sum(const Row<T>&, T, int64_t, const Function<T>&);                           \
  template Row<T> softmax(const Row<T>&, const Function<T>&);                                  \
  template Row<T> log_softmax(const Row<T>&, const Function<T>&, const Function<T>&);          \
  template Row<T> softmax_backward(const Row<T>&, const Row<T>&);                              \
  template Row<T> log_softmax_backward(const Row<T>&, const Row<T>&, const Function<T>&);      \
  template Row<T> cross_entropy_backward(const Row<T>&, T, T, int64_t, T, const Function<T>&); \
  template Normed<T> rms_norm(const Row<T>&, const Row<T>&, T);                                \
  template Row<T> rms_norm_backward(const Row<T>&, const Row<T>&, const Row<T>&, T);           \
  template Normed<T> layer_norm(const Row<T>&, const Row<T>&, const Row<T>&, T);               \
  template Row<T> layer_norm_backward(const Row<T>&, const Row<T>&, const Row<T>&, T, T);      \
  template T add_sample(T, const Row<T>&, const Row<T>&);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::oracle
