// The `stock` generator on CUDA: which Philox word libtorch's kernels give to which element, as arithmetic.
//
// A kernel of T threads starts thread t at (seed, subsequence t, offset) and takes blocks of four words. Which thread
// meets an element, in which of its blocks and which lane, depends on the number of elements and on the device, as T
// does.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/random/philox.h"

namespace tessera::random {

struct CudaDevice {
  int64_t multiprocessors = 0;
  int64_t threads_per_multiprocessor = 0;
};

// Threads that libtorch launches to draw `elements`; 0 for none.
int64_t cuda_threads(const CudaDevice& device, int64_t elements);

// Where an element's word (the first of two for doubles and wide integers: lanes 2k and 2k + 1) stands.
struct CudaPlace {
  uint64_t subsequence = 0;
  uint64_t block = 0;
  int lane = 0;  // among the results of the block: 4 words, or 2 pairs of words
  bool operator==(const CudaPlace&) const = default;
};

// How a kernel deals the results of its blocks to elements.
//
// kFour, kTwo: uniform, normal, random and bernoulli with a number, in steps of T elements; kTwo for doubles and for
// integers of 64 random bits. kVector8 to kVector1: dropout that keeps neighbours together; kVector1 where they do not
// divide.
enum class CudaDeal : uint8_t { kFour, kTwo, kVector8, kVector4, kVector2, kVector1 };

// The deal of `native_dropout`: the widest vector, of at most 16 bytes and `widest` elements (4 in libtorch before
// 16-bit types took 8), that the address of every tensor and the number of elements allow. `alignment` is the greatest
// power of two that divides all addresses; tensors must be dense, else kVector1.
CudaDeal cuda_dropout_deal(int64_t elements, int64_t itemsize, int64_t alignment, int widest = 4);

// The word of one element. `offset` is the generator's Philox offset when the kernel starts, a multiple of 4.
CudaPlace cuda_place(CudaDeal deal, int64_t element, int64_t threads, uint64_t offset);

// The inverse: the element that a place serves, which may lie beyond the tensor's end; -1 if it serves none.
int64_t cuda_element(CudaDeal deal, const CudaPlace& place, int64_t threads, uint64_t offset);

// How far the kernel moves the generator's offset. `pairs_reserve_all`: libtorch versions that reserve as many blocks
// for kTwo as it takes; earlier ones reserve as for kFour, and kernels in a row then share blocks. Dropout reserves as
// kFour always.
uint64_t cuda_reservation(CudaDeal deal, int64_t elements, int64_t threads, bool pairs_reserve_all = true);

// The four words behind a place.
PhiloxWords cuda_words(uint64_t seed, const CudaPlace& place);

// Words to numbers. The device agrees to the last bit for all but the normals, whose logarithm and sine are its own.

// In (0, 1].
float cuda_unit(uint32_t word);
double cuda_unit_double(uint32_t low, uint32_t high);

// In [from, to): the upper end, where it comes out, becomes `from`.
float cuda_uniform(uint32_t word, float from, float to);
double cuda_uniform_double(uint32_t low, uint32_t high, double from, double to);

// 64 random bits of one result of kTwo.
uint64_t cuda_wide(uint32_t first, uint32_t second);

// Integers in [from, from + range), of 32 or 64 random bits.
int64_t cuda_integer(uint64_t bits, int64_t from, uint64_t range);

// The ranges from which on integers take 64 bits: 2^28 in libtorch now, 2^32 before.
constexpr uint64_t kCudaWideRange = uint64_t{1} << 28;

// Four standard normals of a block, by pairs of lanes (0, 1) and (2, 3), the sine first; two for doubles, of all four
// words.
std::array<float, 4> cuda_normals(const PhiloxWords& words);
std::array<double, 2> cuda_normals_double(const PhiloxWords& words);

}  // namespace tessera::random
