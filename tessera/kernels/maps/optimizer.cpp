#include "tessera/kernels/maps/optimizer.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/maps/fold_adamw.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kUpdateGrain = 16384;

template <typename T>
SgdFactors<T> fold(const Sgd& o) {
  return {.sign = static_cast<T>(o.maximize ? -1 : 1),
          .lr = static_cast<T>(o.lr),
          .weight_decay = static_cast<T>(o.weight_decay),
          .momentum = static_cast<T>(o.momentum),
          .grad_weight = static_cast<T>(1 - o.dampening),
          .nesterov = o.nesterov};
}

template <typename T>
LionFactors<T> fold(const Lion& o) {
  return {.sign = static_cast<T>(o.maximize ? -1 : 1),
          .lr = static_cast<T>(o.lr),
          .decay = static_cast<T>(1 - o.lr * o.weight_decay),
          .beta1 = static_cast<T>(o.beta1),
          .grad_weight1 = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .grad_weight2 = static_cast<T>(1 - o.beta2)};
}

}  // namespace

template <typename T>
void adamw_step(const AdamW& options, int64_t n, T* parameter, const T* grad, T* average, T* square, T* largest) {
  const auto run = table<T>().adamw;
  const AdamWFactors<T> factors = fold_adamw<T>(options);
  parallel_for(n, kUpdateGrain, [=](int64_t begin, int64_t end) {
    run(end - begin, factors, parameter + begin, grad + begin, average + begin, square + begin,
        largest ? largest + begin : nullptr);
  });
}

template <typename T>
void sgd_step(const Sgd& options, int64_t n, T* parameter, const T* grad, T* buffer) {
  const SgdFactors<T> factors = fold<T>(options);
  const Table<T>& t = table<T>();
  parallel_for(n, kUpdateGrain, [=, &t](int64_t begin, int64_t end) {
    if (options.momentum == 0) {
      t.sgd(end - begin, factors, parameter + begin, grad + begin);
    } else {
      t.sgd_momentum(end - begin, factors, parameter + begin, grad + begin, buffer + begin);
    }
  });
}

template <typename T>
void lion_step(const Lion& options, int64_t n, T* parameter, const T* grad, T* average) {
  const auto run = table<T>().lion;
  const LionFactors<T> factors = fold<T>(options);
  parallel_for(n, kUpdateGrain, [=](int64_t begin, int64_t end) {
    run(end - begin, factors, parameter + begin, grad + begin, average + begin);
  });
}

template <typename T>
void ema_step(double decay, int64_t n, T* average, const T* value) {
  const auto run = table<T>().ema;
  const T weight = static_cast<T>(1 - decay);
  parallel_for(n, kUpdateGrain,
               [=](int64_t begin, int64_t end) { run(end - begin, weight, average + begin, value + begin); });
}

template void adamw_step(const AdamW&, int64_t, float*, const float*, float*, float*, float*);
template void adamw_step(const AdamW&, int64_t, double*, const double*, double*, double*, double*);
template void sgd_step(const Sgd&, int64_t, float*, const float*, float*);
template void sgd_step(const Sgd&, int64_t, double*, const double*, double*);
template void lion_step(const Lion&, int64_t, float*, const float*, float*);
template void lion_step(const Lion&, int64_t, double*, const double*, double*);
template void ema_step(double, int64_t, float*, const float*);
template void ema_step(double, int64_t, double*, const double*);

}  // namespace tessera::kernels
