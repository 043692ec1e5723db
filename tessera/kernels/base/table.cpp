#include "tessera/kernels/base/table.h"

#include "tessera/base/error.h"
#include "tessera/kernels/base/isa.h"

namespace tessera::kernels {

template <typename T>
const Table<T>& table() {
  switch (current_isa()) {
    case Isa::kScalar: return scalar_table<T>();
    case Isa::kAvx2: return avx2_table<T>();
    case Isa::kAvx512:
    case Isa::kAvx512Bf16: return avx512_table<T>();
  }
  TESSERA_ASSERT(false, "[kernels] no table of ", name_of(current_isa()));
}

template const Table<float>& table<float>();
template const Table<double>& table<double>();

}  // namespace tessera::kernels
