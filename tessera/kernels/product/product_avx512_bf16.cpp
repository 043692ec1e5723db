#include "tessera/kernels/product/pack_avx512.h"
#include "tessera/kernels/product/product_tile.h"

namespace tessera::kernels {
namespace {

// A number is the bits of a pair of bfloat16; a step is two of a chain, the odd one first.
struct PairSteps : Steps<float> {
  static Floats everywhere(float pair) {
    int32_t bits;
    __builtin_memcpy(&bits, &pair, sizeof(bits));
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
  }
  static Floats step(Floats left, Floats right, Floats sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
  }
};

}  // namespace

const detail::NarrowKernel& detail::product_avx512_bf16() {
  static constexpr NarrowKernel kernel = {make_kernel<PairSteps, 14, 28>(/*unpacked_tiles=*/0, TileRows{}),
                                          make_spread<Pairs>()};
  return kernel;
}

}  // namespace tessera::kernels
