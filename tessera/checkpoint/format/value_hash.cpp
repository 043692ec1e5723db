#include "tessera/checkpoint/format/value_hash.h"

#include <bit>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/value_hash.h"
#include "tessera/checkpoint/format/box_runs.h"

namespace tessera::checkpoint {
namespace {

// Functions that are compiled for each of these instruction sets; the processor picks when the program starts. A
// sanitizer is not ready when it does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TESSERA_EACH_ISA __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define TESSERA_EACH_ISA
#endif

// Elements as unsigned words, whose NaNs are those above `infinity` once the sign is gone; 0: there are none.
template <typename Word>
[[gnu::always_inline]] inline uint64_t sum_of(const char* data, uint64_t index, int64_t elements, Word infinity) {
  constexpr Word kWithoutSign = static_cast<Word>(~Word{0}) >> 1;
  uint64_t sum = 0;
  for (int64_t i = 0; i < elements; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    const bool is_nan = infinity != 0 && static_cast<Word>(word & kWithoutSign) > infinity;
    sum += base::hash_element(index + static_cast<uint64_t>(i), is_nan ? ~uint64_t{0} : uint64_t{word});
  }
  return sum;
}

TESSERA_EACH_ISA uint64_t hash_run(const char* data, uint64_t index, int64_t elements, uint8_t infinity) {
  return sum_of(data, index, elements, infinity);
}

TESSERA_EACH_ISA uint64_t hash_run(const char* data, uint64_t index, int64_t elements, uint16_t infinity) {
  return sum_of(data, index, elements, infinity);
}

TESSERA_EACH_ISA uint64_t hash_run(const char* data, uint64_t index, int64_t elements, uint32_t infinity) {
  return sum_of(data, index, elements, infinity);
}

TESSERA_EACH_ISA uint64_t hash_run(const char* data, uint64_t index, int64_t elements, uint64_t infinity) {
  return sum_of(data, index, elements, infinity);
}

uint64_t hash_run(at::ScalarType dtype, const char* data, uint64_t index, int64_t elements) {
  switch (dtype) {
    case at::kDouble: return hash_run(data, index, elements, uint64_t{0x7ff0000000000000});
    case at::kFloat: return hash_run(data, index, elements, uint32_t{0x7f800000});
    case at::kBFloat16: return hash_run(data, index, elements, uint16_t{0x7f80});
    case at::kHalf: return hash_run(data, index, elements, uint16_t{0x7c00});
    default: break;
  }
  switch (at::elementSize(dtype)) {
    case 1: return hash_run(data, index, elements, uint8_t{0});
    case 2: return hash_run(data, index, elements, uint16_t{0});
    case 4: return hash_run(data, index, elements, uint32_t{0});
    default: return hash_run(data, index, elements, uint64_t{0});
  }
}

}  // namespace

uint64_t hash_slice(const at::Tensor& value, const Box& box, c10::IntArrayRef sizes) {
  TESSERA_CHECK(value.is_contiguous() && value.element_size() <= 8, "[checkpoint] the hash of a value of ",
                value.scalar_type(), value.sizes(), "; accepted: contiguous, of elements of up to 8 bytes");
  uint64_t sum = 0;
  if (value.numel() == 0) {
    return sum;
  }
  const auto* data = static_cast<const char*>(value.const_data_ptr());
  for_each_run(box, box, everything(sizes), [&](int64_t at, int64_t index, int64_t elements) {
    sum += hash_run(value.scalar_type(), data + at * static_cast<int64_t>(value.element_size()),
                    static_cast<uint64_t>(index), elements);
  });
  return sum;
}

}  // namespace tessera::checkpoint
