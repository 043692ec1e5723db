#include "tessera/layout/origin.h"

#include <gtest/gtest.h>

namespace tessera::layout::origin_test {
namespace {

TEST(Origin, SaysTheSampleOfARow) {
  const Origin* origin = Origin::make({{0, 4}, {2, 12}});
  const int64_t expected[] = {4, 5, 12, 13, 14};
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_EQ(sample_of_row(origin, row), expected[row]);
    EXPECT_EQ(sample_of_row(nullptr, row), row);
  }
}

TEST(Origin, EqualOnesAreOneAddress) {
  EXPECT_EQ(Origin::make({{0, 3}}), Origin::make({{0, 3}}));
  EXPECT_NE(Origin::make({{0, 3}}), Origin::make({{0, 4}}));
}

}  // namespace
}  // namespace tessera::layout::origin_test
