#include "tessera/kernels/product/pack_scalar.h"

#include "tessera/kernels/tables/make_table.h"

namespace tessera::kernels {

template <>
const Table<float>& scalar_table<float>() {
  return kFloatTable;
}
template <>
const Table<double>& scalar_table<double>() {
  return kDoubleTable;
}

}  // namespace tessera::kernels
