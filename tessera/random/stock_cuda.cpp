#include "tessera/random/stock_cuda.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::random {

namespace {

constexpr int64_t kThreadsPerBlock = 256;
constexpr uint64_t kWordsPerBlock = 4;
constexpr double kPi = 3.14159265358979323846;

// Results that a block gives to elements.
int results_of(CudaDeal deal) { return deal == CudaDeal::kTwo || deal == CudaDeal::kVector2 ? 2 : 4; }

// Neighbours that one thread serves at once; 1: elements go round the threads.
int64_t neighbours_of(CudaDeal deal) {
  switch (deal) {
    case CudaDeal::kVector8: return 8;
    case CudaDeal::kVector4: return 4;
    case CudaDeal::kVector2: return 2;
    default: return 1;
  }
}

uint64_t first_block(uint64_t offset) {
  TESSERA_CHECK(offset % kWordsPerBlock == 0, "[stock random] a Philox offset of ", offset,
                "; libtorch keeps it a multiple of 4");
  return offset / kWordsPerBlock;
}

}  // namespace

int64_t cuda_threads(const CudaDevice& device, int64_t elements) {
  const int64_t most = device.multiprocessors * (device.threads_per_multiprocessor / kThreadsPerBlock);
  return kThreadsPerBlock * std::min(most, (elements + kThreadsPerBlock - 1) / kThreadsPerBlock);
}

CudaDeal cuda_dropout_deal(int64_t elements, int64_t itemsize, int64_t alignment, int widest) {
  int64_t vector = std::min<int64_t>(widest, 16 / itemsize);
  while (vector > 1 && (alignment % (vector * itemsize) != 0 || elements % vector != 0)) {
    vector /= 2;
  }
  switch (vector) {
    case 8: return CudaDeal::kVector8;
    case 4: return CudaDeal::kVector4;
    case 2: return CudaDeal::kVector2;
    default: return CudaDeal::kVector1;
  }
}

CudaPlace cuda_place(CudaDeal deal, int64_t element, int64_t threads, uint64_t offset) {
  const int64_t neighbours = neighbours_of(deal), results = results_of(deal);
  const int64_t group = element / neighbours, turn = group / threads;  // the thread's turn
  // Results that the thread has used up before: elements one at a time fill its blocks, vectors begin new ones.
  const int64_t blocks_of_turn = (neighbours + results - 1) / results;
  const int64_t used = neighbours == 1 ? turn : turn * blocks_of_turn * results + element % neighbours;
  return {static_cast<uint64_t>(group % threads), first_block(offset) + static_cast<uint64_t>(used / results),
          static_cast<int>(used % results)};
}

int64_t cuda_element(CudaDeal deal, const CudaPlace& place, int64_t threads, uint64_t offset) {
  const int64_t neighbours = neighbours_of(deal), results = results_of(deal);
  if (place.lane >= results || place.block < first_block(offset) ||
      place.subsequence >= static_cast<uint64_t>(threads)) {
    return -1;
  }
  const int64_t used = static_cast<int64_t>(place.block - first_block(offset)) * results + place.lane;
  const int64_t turn = used / neighbours, within = used % neighbours;
  return (turn * threads + static_cast<int64_t>(place.subsequence)) * neighbours + within;
}

uint64_t cuda_reservation(CudaDeal deal, int64_t elements, int64_t threads, bool pairs_reserve_all) {
  if (elements == 0) {
    return 0;
  }
  const int64_t results = deal == CudaDeal::kTwo && pairs_reserve_all ? 2 : 4;
  return (static_cast<uint64_t>((elements - 1) / (threads * results)) + 1) * kWordsPerBlock;
}

PhiloxWords cuda_words(uint64_t seed, const CudaPlace& place) {
  return philox_curand(seed, place.subsequence, place.block);
}

float cuda_unit(uint32_t word) { return static_cast<float>(word) * 0x1p-32f + 0x1p-33f; }

double cuda_unit_double(uint32_t low, uint32_t high) {
  return static_cast<double>(uint64_t{low} ^ uint64_t{high} << 21) * 0x1p-53 + 0x1p-54;
}

float cuda_uniform(uint32_t word, float from, float to) {
  const float value = std::fma(cuda_unit(word), to - from, from);
  return value == to ? from : value;
}

double cuda_uniform_double(uint32_t low, uint32_t high, double from, double to) {
  const double value = std::fma(cuda_unit_double(low, high), to - from, from);
  return value == to ? from : value;
}

uint64_t cuda_wide(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

int64_t cuda_integer(uint64_t bits, int64_t from, uint64_t range) {
  return static_cast<int64_t>(bits % range + static_cast<uint64_t>(from));
}

std::array<float, 4> cuda_normals(const PhiloxWords& words) {
  std::array<float, 4> result;
  for (size_t lane = 0; lane < 4; lane += 2) {
    const double radius = std::sqrt(-2.0 * std::log(static_cast<double>(cuda_unit(words[lane]))));
    const double angle = 2 * kPi * (static_cast<double>(words[lane + 1]) + 0.5) * 0x1p-32;
    result[lane] = static_cast<float>(radius * std::sin(angle));
    result[lane + 1] = static_cast<float>(radius * std::cos(angle));
  }
  return result;
}

std::array<double, 2> cuda_normals_double(const PhiloxWords& words) {
  const double radius = std::sqrt(-2.0 * std::log(cuda_unit_double(words[0], words[1])));
  const double angle = 2 * kPi * cuda_unit_double(words[2], words[3]);
  return {radius * std::sin(angle), radius * std::cos(angle)};
}

}  // namespace tessera::random
