#include "tessera/kernels/product/pack_avx512.h"
#include "tessera/kernels/product/product_tile.h"

namespace tessera::kernels {

const detail::ProductKernels& detail::product_avx512() {
  static constexpr ProductKernels kernels = make_kernels<14, 28>(11);
  return kernels;
}

}  // namespace tessera::kernels
