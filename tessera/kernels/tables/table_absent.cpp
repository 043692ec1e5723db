#include "tessera/base/error.h"
#include "tessera/kernels/base/table.h"

namespace tessera::kernels {
namespace {

[[noreturn]] void absent(const char* isa) {
  TESSERA_ASSERT(false, "[kernels] this build has no ", isa, "; is_supported() says so");
}

}  // namespace

template <>
const Table<float>& avx2_table<float>() {
  absent("avx2");
}
template <>
const Table<double>& avx2_table<double>() {
  absent("avx2");
}
template <>
const Table<float>& avx512_table<float>() {
  absent("avx512");
}
template <>
const Table<double>& avx512_table<double>() {
  absent("avx512");
}

}  // namespace tessera::kernels
