#include "tessera/base/hash.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::base::hash_test {
namespace {

TEST(Hash, ValuesAreTheSameInEveryProcess) {
  EXPECT_EQ(hash_mix(0x9e3779b97f4a7c15ULL), 0xe220a8397b1dcdafULL);  // the first output of SplitMix64 seeded with 0
  EXPECT_EQ(hash_string("tessera"), hash_string(std::string("tes") + "sera"));
  EXPECT_EQ(hash_string("tessera"), 0x5357f8ea67d0d59aULL);
  EXPECT_EQ(hash_range(std::vector<int64_t>{1, 2, 3}), 0xdb736a7fe623bee9ULL);
}

TEST(Hash, OrderLengthAndSeedMatter) {
  EXPECT_NE(hash_combine(hash_combine(0, 1), 2), hash_combine(hash_combine(0, 2), 1));
  EXPECT_NE(hash_string(""), hash_string(std::string(1, '\0')));
  EXPECT_NE(hash_string("a"), hash_string(std::string("a\0", 2)));
  EXPECT_NE(hash_string("a"), hash_string("a", 1));
  EXPECT_NE(hash_range(std::vector<int>{}), hash_range(std::vector<int>{0}));
}

TEST(Hash, NearInputsDoNotCollide) {
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 100; ++i) {
    for (uint64_t j = 0; j < 100; ++j) {
      seen.insert(hash_combine(i, j));
    }
  }
  EXPECT_EQ(seen.size(), 10000u);
}

TEST(Hash, OneInputBitFlipsHalfOfTheOutput) {
  double flipped = 0;
  for (int bit = 0; bit < 64; ++bit) {
    flipped += std::popcount(hash_combine(7, 12345) ^ hash_combine(7, 12345ULL ^ (1ULL << bit)));
  }
  EXPECT_NEAR(flipped / 64, 32, 2);
}

TEST(Hash, BytesDoNotReadPastTheirEnd) {
  const std::string text = "0123456789";
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(hash_bytes(text.data(), size), hash_string(text.substr(0, size)));
  }
}

}  // namespace
}  // namespace tessera::base::hash_test
