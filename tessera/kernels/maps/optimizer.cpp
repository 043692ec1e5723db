#include "tessera/kernels/maps/optimizer.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/base/table.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kUpdateGrain = 16384;

template <typename T>
AdamWFactors<T> fold(const AdamW& o) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
  return {.decay = static_cast<T>(1 - o.lr * o.weight_decay),
          .average_weight = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .square_weight = static_cast<T>(1 - o.beta2),
          .root_correction = static_cast<T>(std::sqrt(correction2)),
          .eps = static_cast<T>(o.eps),
          .step_size = static_cast<T>(o.lr / correction1)};
}

template <typename T>
SgdFactors<T> fold(const Sgd& o) {
  return {.lr = static_cast<T>(o.lr),
          .weight_decay = static_cast<T>(o.weight_decay),
          .momentum = static_cast<T>(o.momentum),
          .grad_weight = static_cast<T>(1 - o.dampening),
          .nesterov = o.nesterov};
}

}  // namespace

template <typename T>
void adamw_step(const AdamW& options, int64_t n, T* parameter, const T* grad, T* average, T* square) {
  TESSERA_CHECK(options.step >= 1, "[adamw_step] step ", options.step, "; steps count from 1");
  const auto run = table<T>().adamw;
  const AdamWFactors<T> factors = fold<T>(options);
  parallel_for(n, kUpdateGrain, [=](int64_t begin, int64_t end) {
    run(end - begin, factors, parameter + begin, grad + begin, average + begin, square + begin);
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

template void adamw_step(const AdamW&, int64_t, float*, const float*, float*, float*);
template void adamw_step(const AdamW&, int64_t, double*, const double*, double*, double*);
template void sgd_step(const Sgd&, int64_t, float*, const float*, float*);
template void sgd_step(const Sgd&, int64_t, double*, const double*, double*);

}  // namespace tessera::kernels
