// Texts and samplers: the split, the rows, the errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include <ATen/ops/equal.h>

#include "tessera/base/error.h"
#include "tessera/data/sampler.h"

using namespace tessera::data;
using tessera::ConfigError;
using tessera::DataError;

namespace {

// A file of the given bytes, gone at the end of the test.
class File {
 public:
  explicit File(const std::string& content)
      : path_(::testing::TempDir() + "tessera_text_" + ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~File() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Byte i is i mod 251: a row tells where it was cut, up to 251.
std::string ramp(int64_t size) {
  std::string bytes;
  for (int64_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<char>(i % 251));
  }
  return bytes;
}

template <typename Error, typename Act>
std::string message(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return tessera::base::message_of(error);
  }
  return "no error";
}

TEST(Text, Split) {
  const File file(ramp(1000));
  const Text text(file.path(), {.held_out = 0.1});
  EXPECT_EQ(text.bytes().size(), 1000u);
  EXPECT_EQ(text.train().size(), 900u);
  ASSERT_EQ(text.held_out().size(), 100u);
  EXPECT_EQ(text.held_out()[0], 900 % 251);
  const Text copy = text;
  EXPECT_EQ(copy.bytes().data(), text.bytes().data());
  EXPECT_TRUE(Text(file.path(), {.held_out = 0}).held_out().empty());
}

TEST(Sampler, RowsOfASubRangeAreTheSlice) {
  const File file(ramp(5000));
  const Sampler sampler(Text(file.path()), {.seed = 3, .length = 17});
  for (const int64_t step : {0, 1, 999}) {
    const Batch all = sampler.rows(step, 0, 12);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 12}, {0, 5}, {5, 7}, {11, 1}, {4, 0}}) {
      const Batch some = sampler.rows(step, first, count);
      EXPECT_TRUE(at::equal(some.tokens, all.tokens.slice(0, first, first + count)));
      EXPECT_TRUE(at::equal(some.targets, all.targets.slice(0, first, first + count)));
    }
  }
}

TEST(Sampler, RowsAreNeighbouringBytes) {
  const File file(ramp(3000));
  const Sampler sampler(Text(file.path(), {.held_out = 0.5}), {.length = 40});
  const Batch batch = sampler.rows(5, 0, 64);
  EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
  EXPECT_EQ(batch.tokens.sizes(), at::IntArrayRef({64, 40}));
  EXPECT_TRUE(at::equal(batch.targets, batch.tokens.add(1).remainder(251)));
  EXPECT_TRUE(at::equal(batch.tokens.slice(1, 1), batch.targets.slice(1, 0, 39)));
}

TEST(Sampler, DependsOnSeedStepAndSample) {
  const File file(ramp(5000));
  const auto tokens = [&](uint64_t seed, int64_t step) {
    return Sampler(Text(file.path()), {.seed = seed, .length = 8}).rows(step, 0, 16).tokens;
  };
  EXPECT_TRUE(at::equal(tokens(1, 2), tokens(1, 2)));
  EXPECT_FALSE(at::equal(tokens(1, 2), tokens(1, 3)));
  EXPECT_FALSE(at::equal(tokens(1, 2), tokens(2, 2)));
  EXPECT_FALSE(at::equal(tokens(1, 2)[0], tokens(1, 2)[1]));
}

// Every start is drawn, the first and the last one too, and none that would read held-out bytes as a token to predict.
TEST(Sampler, CoversTheTrainingBytes) {
  const File file(ramp(24));
  const Sampler sampler(Text(file.path(), {.held_out = 0.25}), {.length = 4});
  const at::Tensor first = sampler.rows(0, 0, 2000).tokens.select(1, 0).contiguous();
  std::array<int64_t, 24> counts{};
  for (int64_t i = 0; i < 2000; ++i) {
    ++counts[static_cast<size_t>(first.data_ptr<int64_t>()[i])];
  }
  for (size_t start = 0; start < counts.size(); ++start) {
    EXPECT_EQ(counts[start] > 80, start < 14) << start;
    EXPECT_EQ(counts[start] == 0, start >= 14) << start;
  }
}

TEST(Sampler, HeldOutIsSequential) {
  const File file(ramp(200));
  const Sampler sampler(Text(file.path(), {.held_out = 0.5}), {.length = 9});
  EXPECT_EQ(sampler.held_out_count(), 11);
  const Batch all = sampler.held_out(0, 11);
  EXPECT_EQ(all.tokens[0][0].item<int64_t>(), 100);
  EXPECT_EQ(all.tokens[10][8].item<int64_t>(), 198);
  EXPECT_EQ(all.targets[10][8].item<int64_t>(), 199);
  EXPECT_TRUE(at::equal(sampler.held_out(4, 3).tokens, all.tokens.slice(0, 4, 7)));
  EXPECT_THROW(sampler.held_out(4, 8), DataError);
  EXPECT_EQ(Sampler(Text(file.path(), {.held_out = 0}), {.length = 9}).held_out_count(), 0);
}

TEST(Text, UnigramEntropy) {
  const auto entropy = [](const std::string& text) {
    return unigram_entropy({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(entropy(""), 0);
  EXPECT_EQ(entropy("aaaa"), 0);
  EXPECT_NEAR(entropy("abab"), std::log(2.0), 1e-15);
  EXPECT_NEAR(entropy("aaab"), 0.75 * std::log(4.0 / 3) + 0.25 * std::log(4.0), 1e-15);
  EXPECT_NEAR(entropy(ramp(251 * 3)), std::log(251.0), 1e-12);
}

TEST(Text, ErrorsSayWhatToChange) {
  EXPECT_NE(message<DataError>([] { Text("/nowhere/text.txt"); }).find("cannot open \"/nowhere/text.txt\""),
            std::string::npos);
  EXPECT_NE(message<DataError>([] { Text("/"); }).find("not a regular file"), std::string::npos);
  const File empty("");
  EXPECT_NE(message<DataError>([&] { Text{empty.path()}; }).find("is empty"), std::string::npos);
  const File file(ramp(100));
  EXPECT_NE(message<ConfigError>([&] { Text(file.path(), {.held_out = 1}); }).find("[0, 1)"), std::string::npos);
  const Text text(file.path(), {.held_out = 0.5});
  EXPECT_NE(message<DataError>([&] { Sampler(text, {.length = 50}); }).find("needs 51; give a longer text"),
            std::string::npos);
  EXPECT_NO_THROW(Sampler(text, {.length = 49}));
  EXPECT_THROW(Sampler(text, {.length = 0}), ConfigError);
  EXPECT_THROW(Sampler(text, {.length = 4}).rows(-1, 0, 1), c10::Error);
}

}  // namespace
