// Which instruction set the kernels of this floor run on. No result depends on it: kernels give the same bits on each.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::kernels {

// From the narrowest to the widest. kAvx2 means AVX2 and FMA; kAvx512 means AVX-512 F, BW, DQ and VL; kAvx512Bf16
// multiplies bfloat16 by pairs (vdpbf16ps) as well, and is kAvx512 in all else.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

// `scalar`, `avx2`, `avx512`, `avx512_bf16`.
const char* name_of(Isa isa);

// True if this processor runs it and this build has it. Scalar always is.
bool is_supported(Isa isa);

// All that are supported, scalar first.
std::vector<Isa> supported_isas();

// The widest that is supported, but kAvx512 on processors with AMX: there vdpbf16ps was found slower than the two
// multiply-adds that it does (docs/measured/product.md).
Isa best_isa();

// What kernels use now: the innermost ScopedIsa, or else the environment variable TESSERA_ISA (read once, at the first
// call), or else best_isa(). Throws ConfigError if TESSERA_ISA names none or one that is not supported. Thread-safe.
Isa current_isa();

// While it lives, kernels of the whole process use `isa`: for tests and benchmarks. Throws if `isa` is not supported.
// Scopes nest, and are made and destroyed in one thread while no kernel runs.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int before_;
};

}  // namespace tessera::kernels
