#include "tessera/kernels/product/pack_avx2.h"
#include "tessera/kernels/product/product_tile.h"

namespace tessera::kernels {

const detail::ProductKernels& detail::product_avx2() {
  static constexpr ProductKernels kernels = make_kernels<6, 12>(3);
  return kernels;
}

}  // namespace tessera::kernels
