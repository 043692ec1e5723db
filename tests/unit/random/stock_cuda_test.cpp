// The maps of the CUDA kernels against a simulation of their loops that draws with ATen's Philox engine, against
// tables, and against the deal of doubles that is easy to get wrong.
#include <functional>
#include <map>

#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>

#include "tessera/random/stock_cuda.h"

namespace tessera::random::stock_cuda_test {
namespace {

constexpr uint64_t kSeed = 0x0123456789abcdef;
const CudaDeal kDeals[] = {CudaDeal::kFour,    CudaDeal::kTwo,     CudaDeal::kVector8,
                           CudaDeal::kVector4, CudaDeal::kVector2, CudaDeal::kVector1};

// One thread's state of curand.
class Thread {
 public:
  Thread(uint64_t thread, uint64_t offset) : engine_(kSeed, thread, offset / 4) {}
  PhiloxWords next() {
    ++blocks;
    return {engine_(), engine_(), engine_(), engine_()};
  }
  uint64_t blocks = 0;

 private:
  at::Philox4_32 engine_;
};

struct Simulated {
  std::vector<std::vector<uint32_t>> words;  // of each element
  uint64_t blocks = 0;                       // that the busiest thread drew
};

// Grid-stride loop: `results` elements, T apart, share a block; each has 4 / results words.
Simulated strided(int64_t elements, int64_t threads, int64_t results, uint64_t offset) {
  Simulated done{std::vector<std::vector<uint32_t>>(static_cast<size_t>(elements)), 0};
  const int64_t rounded = ((elements - 1) / (threads * results) + 1) * threads * results;
  for (int64_t t = 0; t < threads; ++t) {
    Thread thread(static_cast<uint64_t>(t), offset);
    for (int64_t at = t; at < rounded; at += threads * results) {
      const PhiloxWords words = thread.next();
      for (int64_t i = 0; i < results; ++i) {
        if (at + threads * i >= elements) {
          continue;
        }
        auto& own = done.words[static_cast<size_t>(at + threads * i)];
        for (int64_t k = 0; k < 4 / results; ++k) {
          own.push_back(words[static_cast<size_t>(i * 4 / results + k)]);
        }
      }
    }
    done.blocks = std::max(done.blocks, thread.blocks);
  }
  return done;
}

// Dropout's loop over vectors: new blocks in every turn.
Simulated vectors(int64_t elements, int64_t threads, int64_t width, uint64_t offset) {
  Simulated done{std::vector<std::vector<uint32_t>>(static_cast<size_t>(elements)), 0};
  for (int64_t t = 0; t < threads; ++t) {
    Thread thread(static_cast<uint64_t>(t), offset);
    for (int64_t at = t * width; at < elements; at += threads * width) {
      PhiloxWords words = thread.next();
      for (int64_t i = 0; i < width; ++i) {
        if (i == 4) {
          words = thread.next();
        }
        done.words[static_cast<size_t>(at + i)] = {words[static_cast<size_t>(i % 4)]};
      }
    }
    done.blocks = std::max(done.blocks, thread.blocks);
  }
  return done;
}

Simulated simulate(CudaDeal deal, int64_t elements, int64_t threads, uint64_t offset) {
  switch (deal) {
    case CudaDeal::kTwo: return strided(elements, threads, 2, offset);
    case CudaDeal::kVector8: return vectors(elements, threads, 8, offset);
    case CudaDeal::kVector4: return vectors(elements, threads, 4, offset);
    case CudaDeal::kVector2: return vectors(elements, threads, 2, offset);
    default: return strided(elements, threads, 4, offset);
  }
}

int64_t width_of(CudaDeal deal) {
  return deal == CudaDeal::kVector8 ? 8 : deal == CudaDeal::kVector4 ? 4 : deal == CudaDeal::kVector2 ? 2 : 1;
}

// On both sides of T, 2T, 4T and 8T, for every remainder of 8.
TEST(StockCuda, PlacesAreThoseOfTheKernels) {
  for (const CudaDevice& device : {CudaDevice{1, 256}, CudaDevice{3, 600}}) {
    const int64_t most = cuda_threads(device, int64_t{1} << 40);
    for (const int64_t times : {0, 1, 2, 4, 5, 8, 17}) {
      for (int64_t elements = std::max<int64_t>(1, times * most - 8); elements <= times * most + 8; ++elements) {
        const int64_t threads = cuda_threads(device, elements);
        for (const CudaDeal deal : kDeals) {
          if (elements % width_of(deal) != 0) {
            continue;
          }
          for (const uint64_t offset : {uint64_t{4}, uint64_t{1} << 36}) {
            const Simulated done = simulate(deal, elements, threads, offset);
            for (int64_t element = 0; element < elements; ++element) {
              const CudaPlace place = cuda_place(deal, element, threads, offset);
              const PhiloxWords words = cuda_words(kSeed, place);
              const auto& expected = done.words[static_cast<size_t>(element)];
              for (size_t k = 0; k < expected.size(); ++k) {
                ASSERT_EQ(words[static_cast<size_t>(place.lane) * expected.size() + k], expected[k])
                    << int(deal) << " " << elements << " " << element;
              }
              ASSERT_EQ(cuda_element(deal, place, threads, offset), element);
            }
          }
        }
      }
    }
  }
}

// Enough blocks are reserved, so that the next kernel begins with new ones; except where libtorch itself reserves too
// few.
TEST(StockCuda, Reservations) {
  const CudaDevice device{2, 512};
  for (int64_t elements = 1; elements < 9000; elements += 61) {
    const int64_t threads = cuda_threads(device, elements);
    for (const CudaDeal deal : kDeals) {
      if (elements % width_of(deal) != 0) {
        continue;
      }
      const uint64_t used = 4 * simulate(deal, elements, threads, 0).blocks,
                     reserved = cuda_reservation(deal, elements, threads);
      if (deal == CudaDeal::kVector8 || deal == CudaDeal::kVector2) {
        continue;
      }
      EXPECT_EQ(reserved, used) << int(deal) << " " << elements;
    }
    EXPECT_EQ(cuda_reservation(CudaDeal::kTwo, elements, threads, false),
              cuda_reservation(CudaDeal::kFour, elements, threads));
  }
  const int64_t threads = cuda_threads(device, 8192);
  EXPECT_EQ(cuda_reservation(CudaDeal::kVector8, 4096, threads), 4u);
  EXPECT_EQ(4 * simulate(CudaDeal::kVector8, 4096, threads, 0).blocks, 8u);
  EXPECT_EQ(cuda_reservation(CudaDeal::kVector2, 8192, threads), 8u);
  EXPECT_EQ(4 * simulate(CudaDeal::kVector2, 8192, threads, 0).blocks, 16u);
  EXPECT_EQ(cuda_reservation(CudaDeal::kFour, 0, 0), 0u);
}

TEST(StockCuda, Threads) {
  const CudaDevice a100{108, 2048}, h100{132, 2048};
  EXPECT_EQ(cuda_threads(a100, int64_t{1} << 30), 221184);
  EXPECT_EQ(cuda_threads(h100, int64_t{1} << 30), 270336);
  EXPECT_EQ(cuda_threads(h100, 1), 256);
  EXPECT_EQ(cuda_threads(h100, 257), 512);
  EXPECT_EQ(cuda_threads(h100, 270336), 270336);
  EXPECT_EQ(cuda_threads(h100, 270337), 270336);
  EXPECT_EQ(cuda_threads(h100, 0), 0);
}

// Known places for eight threads.
TEST(StockCuda, Table) {
  using Row = std::array<uint64_t, 3>;
  const std::map<int64_t, std::map<CudaDeal, Row>> table = {
      {7,
       {{CudaDeal::kFour, {7, 0, 0}},
        {CudaDeal::kTwo, {7, 0, 0}},
        {CudaDeal::kVector4, {1, 0, 3}},
        {CudaDeal::kVector2, {3, 0, 1}},
        {CudaDeal::kVector1, {7, 0, 0}}}},
      {9,
       {{CudaDeal::kFour, {1, 0, 1}},
        {CudaDeal::kTwo, {1, 0, 1}},
        {CudaDeal::kVector4, {2, 0, 1}},
        {CudaDeal::kVector2, {4, 0, 1}},
        {CudaDeal::kVector1, {1, 0, 1}}}},
      {16,
       {{CudaDeal::kFour, {0, 0, 2}},
        {CudaDeal::kTwo, {0, 1, 0}},
        {CudaDeal::kVector4, {4, 0, 0}},
        {CudaDeal::kVector2, {0, 1, 0}},
        {CudaDeal::kVector1, {0, 0, 2}}}},
      {33,
       {{CudaDeal::kFour, {1, 1, 0}},
        {CudaDeal::kTwo, {1, 2, 0}},
        {CudaDeal::kVector4, {0, 1, 1}},
        {CudaDeal::kVector2, {0, 2, 1}},
        {CudaDeal::kVector1, {1, 1, 0}}}},
      {40,
       {{CudaDeal::kFour, {0, 1, 1}},
        {CudaDeal::kTwo, {0, 2, 1}},
        {CudaDeal::kVector4, {2, 1, 0}},
        {CudaDeal::kVector2, {4, 2, 0}},
        {CudaDeal::kVector1, {0, 1, 1}}}},
      {63,
       {{CudaDeal::kFour, {7, 1, 3}},
        {CudaDeal::kTwo, {7, 3, 1}},
        {CudaDeal::kVector4, {7, 1, 3}},
        {CudaDeal::kVector2, {7, 3, 1}},
        {CudaDeal::kVector1, {7, 1, 3}}}},
  };
  for (const auto& [element, row] : table) {
    for (const auto& [deal, expected] : row) {
      EXPECT_EQ(cuda_place(deal, element, 8, 0), (CudaPlace{expected[0], expected[1], static_cast<int>(expected[2])}))
          << element << " " << int(deal);
    }
  }
}

// The control: taking two results of a block for four gives every other double the value of its neighbour in the
// stream.
TEST(StockCuda, PairsAreNotHalvesOfFour) {
  int differ = 0;
  for (int64_t element = 0; element < 64; ++element) {
    const CudaPlace place = cuda_place(CudaDeal::kTwo, element, 8, 0);
    const uint64_t words_before = static_cast<uint64_t>(element / 8) * 2;
    differ +=
        place != CudaPlace{static_cast<uint64_t>(element % 8), words_before / 4, static_cast<int>(words_before % 2)};
  }
  EXPECT_EQ(differ, 32);
}

TEST(StockCuda, WidthOfDropout) {
  EXPECT_EQ(cuda_dropout_deal(1024, 4, 512), CudaDeal::kVector4);
  EXPECT_EQ(cuda_dropout_deal(1026, 4, 512), CudaDeal::kVector2);
  EXPECT_EQ(cuda_dropout_deal(1025, 4, 512), CudaDeal::kVector1);
  EXPECT_EQ(cuda_dropout_deal(1024, 4, 8), CudaDeal::kVector2);
  EXPECT_EQ(cuda_dropout_deal(1024, 4, 4), CudaDeal::kVector1);
  EXPECT_EQ(cuda_dropout_deal(1024, 8, 512), CudaDeal::kVector2);
  EXPECT_EQ(cuda_dropout_deal(1024, 2, 512), CudaDeal::kVector4);
  EXPECT_EQ(cuda_dropout_deal(1024, 2, 512, 8), CudaDeal::kVector8);
  EXPECT_EQ(cuda_dropout_deal(1028, 2, 512, 8), CudaDeal::kVector4);
}

// What CUDA libtorch is commonly seen to print for torch.rand(5) after seed 42.
TEST(StockCuda, Numbers) {
  const float expected[] = {0.6130f, 0.0101f, 0.3984f, 0.0403f, 0.1563f};
  for (int64_t i = 0; i < 5; ++i) {
    const CudaPlace place = cuda_place(CudaDeal::kFour, i, 256, 0);
    EXPECT_NEAR(cuda_uniform(cuda_words(42, place)[static_cast<size_t>(place.lane)], 0, 1), expected[i], 5e-5);
  }
  EXPECT_EQ(cuda_unit(0), 0x1p-33f);
  EXPECT_EQ(cuda_unit(0xffffffff), 1.0f);
  EXPECT_EQ(cuda_uniform(0xffffffff, 0, 1), 0.0f);
  EXPECT_EQ(cuda_uniform(0xffffffff, -2, 3), -2.0f);
  EXPECT_EQ(cuda_unit_double(0, 0), 0x1p-54);
  EXPECT_EQ(cuda_unit_double(0x1fffff, 0xffffffff), 1.0);
  EXPECT_EQ(cuda_uniform_double(0x1fffff, 0xffffffff, 0, 1), 0.0);
  EXPECT_EQ(cuda_wide(1, 2), 0x0000000100000002u);
  EXPECT_EQ(cuda_integer(17, -5, 12), 0);
  EXPECT_EQ(cuda_integer(~uint64_t{0}, std::numeric_limits<int64_t>::min(), uint64_t{1} << 63), -1);
}

TEST(StockCuda, NormalsArePairsOfUnitVariance) {
  double sum = 0, squares = 0, product = 0;
  constexpr int kBlocks = 20000;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const PhiloxWords words = philox_curand(kSeed, 0, block);
    const auto four = cuda_normals(words);
    // A pair's length is the radius of its first word, its direction the angle of its second.
    EXPECT_NEAR(std::hypot(four[2], four[3]), std::sqrt(-2 * std::log(cuda_unit(words[2]))), 1e-5);
    EXPECT_NEAR(std::remainder(std::atan2(four[0], four[1]) - 2 * M_PI * words[1] * 0x1p-32, 2 * M_PI), 0, 1e-5);
    const auto two = cuda_normals_double(words);
    EXPECT_NEAR(std::hypot(two[0], two[1]), std::sqrt(-2 * std::log(cuda_unit_double(words[0], words[1]))), 1e-12);
    for (const float x : four) {
      sum += x, squares += x * x;
    }
    product += four[0] * four[1];
  }
  EXPECT_NEAR(sum / (4 * kBlocks), 0, 0.02);
  EXPECT_NEAR(squares / (4 * kBlocks), 1, 0.03);
  EXPECT_NEAR(product / kBlocks, 0, 0.03);
}

}  // namespace
}  // namespace tessera::random::stock_cuda_test
