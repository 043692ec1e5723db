#include "tessera/kernels/base/parallel.h"

#include <ATen/Parallel.h>

#include "tessera/base/values.h"
#include "tessera/kernels/base/float_environment.h"

namespace tessera::kernels {

void detail::run_parallel(int64_t count, int64_t grain, RangeBody body, const void* context) {
  if (count <= 0 || !base::has_values()) {
    return;
  }
  if (count <= grain || thread_count() == 1) {
    const FloatEnvironment environment;
    body(context, 0, count);
    return;
  }
  const AllThreads threads;
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    const FloatEnvironment environment;
    body(context, begin, end);
  });
}

}  // namespace tessera::kernels
