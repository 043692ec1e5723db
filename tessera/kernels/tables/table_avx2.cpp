#include "tessera/kernels/product/pack_avx2.h"

#include "tessera/kernels/tables/make_table.h"

namespace tessera::kernels {

template <>
const Table<float>& avx2_table<float>() {
  return kFloatTable;
}
template <>
const Table<double>& avx2_table<double>() {
  return kDoubleTable;
}

}  // namespace tessera::kernels
