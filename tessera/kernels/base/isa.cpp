#include "tessera/kernels/base/isa.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tessera::kernels {

namespace {

constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
constexpr int kNone = -1;

std::atomic<int> scoped{kNone};

std::string supported_names() {
  return base::join(supported_isas(), ", ", [](std::ostream& out, Isa isa) { out << name_of(isa); });
}

Isa from_environment() {
  const char* text = std::getenv("TESSERA_ISA");
  if (text == nullptr || *text == '\0') {
    return best_isa();
  }
  for (Isa isa : supported_isas()) {
    if (std::string(text) == name_of(isa)) {
      return isa;
    }
  }
  TESSERA_THROW(ConfigError, "[kernels] TESSERA_ISA=", text, "; this processor and build run ", supported_names());
}

// Whether the processor has tile registers for bfloat16: bit 22 of what leaf 7 of cpuid leaves in edx.
bool has_amx() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 22 & 1) != 0;
#else
  return false;
#endif
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512_bf16";
  }
  TESSERA_ASSERT(false, "Isa ", static_cast<int>(isa));
}

#if defined(__x86_64__)

bool is_supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && is_supported(Isa::kAvx2);
    case Isa::kAvx512Bf16: return __builtin_cpu_supports("avx512bf16") && is_supported(Isa::kAvx512);
  }
  TESSERA_ASSERT(false, "Isa ", static_cast<int>(isa));
}

#else

bool is_supported(Isa isa) { return isa == Isa::kScalar; }

#endif

std::vector<Isa> supported_isas() {
  std::vector<Isa> result;
  for (Isa isa : kAll) {
    if (is_supported(isa)) {
      result.push_back(isa);
    }
  }
  return result;
}

Isa best_isa() {
  const Isa widest = supported_isas().back();
  return widest == Isa::kAvx512Bf16 && has_amx() ? Isa::kAvx512 : widest;
}

Isa current_isa() {
  const int now = scoped.load(std::memory_order_relaxed);
  if (now != kNone) {
    return static_cast<Isa>(now);
  }
  static const Isa chosen = from_environment();
  return chosen;
}

ScopedIsa::ScopedIsa(Isa isa) : before_(scoped.load()) {
  TESSERA_CHECK(is_supported(isa), "[kernels] ScopedIsa(", name_of(isa), "); this processor and build run ",
                supported_names());
  scoped.store(static_cast<int>(isa));
}

ScopedIsa::~ScopedIsa() { scoped.store(before_); }

}  // namespace tessera::kernels
