#include "tessera/kernels/product/pack_avx512.h"

#include "tessera/kernels/tables/make_table.h"

namespace tessera::kernels {

template <>
const Table<float>& avx512_table<float>() {
  return kFloatTable;
}
template <>
const Table<double>& avx512_table<double>() {
  return kDoubleTable;
}

}  // namespace tessera::kernels
