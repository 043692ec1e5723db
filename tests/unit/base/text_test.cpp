#include "tessera/base/text.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace tessera::base::text_test {
namespace {

TEST(Text, JoinPutsTheSeparatorBetween) {
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
  EXPECT_EQ(join(std::vector<int>{1}, ", "), "1");
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(join(std::vector<int>{1, 2}, "+", [](std::ostream& out, int i) { out << 'x' << i; }), "x1+x2");
}

TEST(Text, SplitAndTrim) {
  EXPECT_EQ(split("dp=2,tp=2", ','), (std::vector<std::string>{"dp=2", "tp=2"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(split(",a,", ','), (std::vector<std::string>{"", "a", ""}));
  EXPECT_EQ(trim("  a b\t\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, ParseIntWantsTheWholeText) {
  EXPECT_EQ(try_parse_int("42"), 42);
  EXPECT_EQ(try_parse_int("-7"), -7);
  for (const auto* bad : {"", "4x", " 4", "4.0", "99999999999999999999"}) {
    EXPECT_FALSE(try_parse_int(bad)) << bad;
  }
}

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("setps", "steps"), 1);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  EXPECT_EQ(edit_distance("ab", "ba"), edit_distance("ba", "ab"));
}

TEST(Text, NearestNamesOnlyWhatIsNear) {
  const std::vector<std::string> keys = {"learning_rate", "steps", "seed", "warmup_steps"};
  EXPECT_EQ(nearest("setps", keys), "steps");
  EXPECT_EQ(nearest("learn_rate", keys), "learning_rate");
  EXPECT_EQ(nearest("sed", keys), "seed");
  EXPECT_EQ(nearest("gradient", keys), std::nullopt);
  EXPECT_EQ(nearest("x", {}), std::nullopt);
  EXPECT_EQ(did_you_mean("setps", keys), "; did you mean \"steps\"?");
  EXPECT_EQ(did_you_mean("gradient", keys), "");
}

TEST(Text, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1 KiB");
  EXPECT_EQ(human_bytes(4403), "4.3 KiB");
  EXPECT_EQ(human_bytes(1310720), "1.25 MiB");
  EXPECT_EQ(human_bytes(int64_t{3} << 40), "3 TiB");
  EXPECT_EQ(human_bytes(-2048), "-2 KiB");
}

TEST(Text, HumanCount) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1050), "1.05 K");
  EXPECT_EQ(human_count(1234567), "1.23 M");
  EXPECT_EQ(human_count(999999), "1 M");
}

TEST(Text, HumanDuration) {
  EXPECT_EQ(human_duration(850e-9), "850 ns");
  EXPECT_EQ(human_duration(12.3e-6), "12.3 us");
  EXPECT_EQ(human_duration(0.00456), "4.56 ms");
  EXPECT_EQ(human_duration(7.8), "7.8 s");
  EXPECT_EQ(human_duration(59.99), "1 min 00 s");
  EXPECT_EQ(human_duration(125), "2 min 05 s");
  EXPECT_EQ(human_duration(3725), "1 h 02 min");
  EXPECT_EQ(human_duration(90000), "1 d 01 h");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "unknown");
}

TEST(Text, ExactDoubleReadsBack) {
  EXPECT_EQ(exact_double(0.1), "0.10000000000000001");
  EXPECT_EQ(exact_double(-0.0), "-0");
  EXPECT_EQ(exact_double(std::nan("")), "nan");
  EXPECT_EQ(exact_double(-std::numeric_limits<double>::infinity()), "-inf");
  const unsigned seed = 20240;
  std::mt19937_64 draw(seed);
  for (int i = 0; i < 1000; ++i) {
    const double value = std::ldexp(static_cast<double>(draw()) - 9.2e18, static_cast<int>(draw() % 600) - 300);
    EXPECT_EQ(std::stod(exact_double(value)), value) << "seed " << seed << ", draw " << i;
  }
}

}  // namespace
}  // namespace tessera::base::text_test
