// Philox against known answers.
#include <gtest/gtest.h>

#include "tessera/random/philox.h"

namespace tessera::random::philox_test {
namespace {

static_assert(philox({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);

struct Vector {
  uint64_t seed, subsequence, block;
  PhiloxWords words;
};

TEST(Philox, KnownAnswers) {
  const Vector vectors[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {42, 0, 0, {0x9ceaf053, 0x77f5493b, 0x12bf50ad, 0x5742b3d7}},
      {42, 1, 0, {0x02933769, 0x2051e913, 0x3b68b038, 0xb62c409c}},
      {42, 0, 1, {0xfcdb2127, 0x53ba6cfd, 0x838f5a6e, 0x744e06fb}},
      {42, 270335, 1, {0x9af278da, 0xd8a57d21, 0x8071e628, 0x734c30e3}},
      {0x0123456789abcdef, 3, 7, {0xfd6caef0, 0x67581926, 0x7e306f1a, 0x0c01d0c0}},
  };
  for (const Vector& vector : vectors) {
    EXPECT_EQ(philox_curand(vector.seed, vector.subsequence, vector.block), vector.words)
        << vector.seed << " " << vector.subsequence << " " << vector.block;
  }
}

// Random123's published vectors, which set all words.
TEST(Philox, Random123) {
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// torch's CUDA uniform of five floats after seed 42: element i is lane 0 of subsequence i.
TEST(Philox, CudaUniform) {
  const float expected[] = {0.6130f, 0.0101f, 0.3984f, 0.0403f, 0.1563f};
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(static_cast<double>(philox_curand(42, i, 0)[0]) * 0x1p-32, expected[i], 5e-5);
  }
}

}  // namespace

}  // namespace tessera::random::philox_test
