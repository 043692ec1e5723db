// The processor family has no other instruction set than the portable one.
#include "tessera/base/error.h"
#include "tessera/kernels/product/product_kernel.h"

namespace tessera::kernels {

const detail::ProductKernels& detail::product_avx2() { TESSERA_ASSERT(false, "is_supported() is false here"); }

const detail::ProductKernels& detail::product_avx512() { TESSERA_ASSERT(false, "is_supported() is false here"); }

const detail::NarrowKernel& detail::product_avx512_bf16() { TESSERA_ASSERT(false, "is_supported() is false here"); }

}  // namespace tessera::kernels
