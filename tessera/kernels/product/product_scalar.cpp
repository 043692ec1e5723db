#include "tessera/kernels/product/pack_scalar.h"
#include "tessera/kernels/product/product_tile.h"

namespace tessera::kernels {

const detail::ProductKernels& detail::product_scalar() {
  static constexpr ProductKernels kernels = make_kernels<4, 8>(3);
  return kernels;
}

}  // namespace tessera::kernels
