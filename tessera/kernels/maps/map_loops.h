// Elementwise kernels and optimizer steps on one instruction set. For table_<isa>.cpp alone.
#pragma once

#include "tessera/kernels/base/lanes.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/base/vector_math.h"

namespace tessera::kernels {
namespace {

template <typename T, Pack<T> (*kFunction)(Pack<T>)>
void map(int64_t n, const T* x, T* y) {
  for_each_pack<T>(n, [=](int64_t at, auto access) { access.store(y + at, kFunction(access.load(x + at))); });
}

// Two packs at a time: each fills the other's waits.
template <typename T>
void gelu(int64_t n, const T* x, T* y) {
  int64_t at = 0;
  for (; at + 2 * kWidth<T> <= n; at += 2 * kWidth<T>) {
    Pack<T> two[] = {load(x + at), load(x + at + kWidth<T>)};
    VectorMath<T>::gelu(two);
    store(y + at, two[0]);
    store(y + at + kWidth<T>, two[1]);
  }
  for_each_pack<T>(n - at, [x = x + at, y = y + at](int64_t i, auto access) {
    Pack<T> one[] = {access.load(x + i)};
    VectorMath<T>::gelu(one);
    access.store(y + i, one[0]);
  });
}

template <typename T, Pack<T> (*kFunction)(Pack<T>, Pack<T>)>
void map_backward(int64_t n, const T* grad, const T* x, T* dx) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    access.store(dx + at, kFunction(access.load(grad + at), access.load(x + at)));
  });
}

template <typename T>
Pack<T> plus_zero(Pack<T> x) {
  return x + Pack<T>{};
}

template <typename T>
void dropout(int64_t n, const T* x, const bool* keep, T scale, T* y) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    T mask[kWidth<T>] = {};
    const int64_t count = n - at < kWidth<T> ? n - at : kWidth<T>;
    for (int64_t j = 0; j < count; ++j) {
      mask[j] = static_cast<T>(keep[at + j]);
    }
    access.store(y + at, (access.load(x + at) * load<T>(mask)) * scale);
  });
}

template <typename T>
void adamw(int64_t n, const AdamWFactors<T>& f, T* parameter, const T* grad, T* average, T* square, T* largest) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    using V = Pack<T>;
    const V p = access.load(parameter + at);
    V g = f.sign * access.load(grad + at);
    if (f.in_gradient != 0) {
      g = fma(splat(f.in_gradient), p, g);
    }
    const V before = access.load(average + at);
    const V m = fma(splat(f.average_weight), g - before, before);
    V v = fma(f.square_weight * g, g, access.load(square + at) * f.beta2);
    access.store(average + at, m);
    access.store(square + at, v);
    if (largest) {
      const V most = access.load(largest + at);
      v = most == most ? max(most, v) : most;  // of a NaN, the NaN
      access.store(largest + at, v);
    }
    const V root = sqrt(v) / f.root_correction + f.eps;
    access.store(parameter + at, p * f.decay + (-f.step_size * m) / root);
  });
}

template <typename T>
void sgd(int64_t n, const SgdFactors<T>& f, T* parameter, const T* grad) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    const Pack<T> p = access.load(parameter + at);
    const Pack<T> g = fma(splat(f.weight_decay), p, f.sign * access.load(grad + at));
    access.store(parameter + at, fma(splat(-f.lr), g, p));
  });
}

template <typename T>
void sgd_momentum(int64_t n, const SgdFactors<T>& f, T* parameter, const T* grad, T* momentum) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    const Pack<T> p = access.load(parameter + at);
    const Pack<T> g = fma(splat(f.weight_decay), p, f.sign * access.load(grad + at));
    const Pack<T> m = fma(splat(f.grad_weight), g, access.load(momentum + at) * f.momentum);
    access.store(momentum + at, m);
    access.store(parameter + at, fma(splat(-f.lr), f.nesterov ? fma(splat(f.momentum), m, g) : m, p));
  });
}

template <typename T>
void lion(int64_t n, const LionFactors<T>& f, T* parameter, const T* grad, T* average) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    using V = Pack<T>;
    const V g = f.sign * access.load(grad + at);
    const V m = access.load(average + at);
    const V mixed = fma(splat(f.grad_weight1), g, m * f.beta1);
    const V step = mixed > T(0) ? splat(f.lr) : (mixed < T(0) ? splat(-f.lr) : V{});
    access.store(average + at, fma(splat(f.grad_weight2), g, m * f.beta2));
    access.store(parameter + at, access.load(parameter + at) * f.decay - step);
  });
}

template <typename T>
void ema(int64_t n, T weight, T* average, const T* value) {
  for_each_pack<T>(n, [=](int64_t at, auto access) {
    const Pack<T> before = access.load(average + at);
    access.store(average + at, fma(splat(weight), access.load(value + at) - before, before));
  });
}

}  // namespace
}  // namespace tessera::kernels
