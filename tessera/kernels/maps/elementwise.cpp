#include "tessera/kernels/maps/elementwise.h"

#include "tessera/base/error.h"
#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/base/table.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kGrain = 16384;

template <typename T>
Table<T>::Map find(Function function) {
  const Table<T>& t = table<T>();
  switch (function) {
    case Function::kExp: return t.exp;
    case Function::kLog: return t.log;
    case Function::kTanh: return t.tanh;
    case Function::kErf: return t.erf;
    case Function::kSigmoid: return t.sigmoid;
    case Function::kSilu: return t.silu;
    case Function::kGelu: return t.gelu;
    case Function::kGeluTanh: return t.gelu_tanh;
  }
  TESSERA_ASSERT(false, "[elementwise] function ", static_cast<int>(function));
}

template <typename T>
Table<T>::MapBackward find(Derivative derivative) {
  const Table<T>& t = table<T>();
  switch (derivative) {
    case Derivative::kSilu: return t.silu_backward;
    case Derivative::kGelu: return t.gelu_backward;
    case Derivative::kGeluTanh: return t.gelu_tanh_backward;
  }
  TESSERA_ASSERT(false, "[elementwise] derivative ", static_cast<int>(derivative));
}

}  // namespace

template <typename T>
void map(Function function, int64_t n, const T* x, T* y) {
  const auto run = find<T>(function);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) { run(end - begin, x + begin, y + begin); });
}

template <typename T>
void map_backward(Derivative derivative, int64_t n, const T* grad, const T* x, T* dx) {
  const auto run = find<T>(derivative);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) { run(end - begin, grad + begin, x + begin, dx + begin); });
}

template <typename T>
void dropout(int64_t n, const T* x, const bool* keep, double scale, T* y) {
  const auto run = table<T>().dropout;
  const T factor = static_cast<T>(scale);
  parallel_for(n, kGrain,
               [=](int64_t begin, int64_t end) { run(end - begin, x + begin, keep + begin, factor, y + begin); });
}

template void map(Function, int64_t, const float*, float*);
template void map(Function, int64_t, const double*, double*);
template void map_backward(Derivative, int64_t, const float*, const float*, float*);
template void map_backward(Derivative, int64_t, const double*, const double*, double*);
template void dropout(int64_t, const float*, const bool*, double, float*);
template void dropout(int64_t, const double*, const bool*, double, double*);

}  // namespace tessera::kernels
