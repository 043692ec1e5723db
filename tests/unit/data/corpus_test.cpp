// Corpora and samplers: the split, the rows, documents, tokens, the errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include <ATen/ops/equal.h>

#include "tessera/base/error.h"
#include "tessera/data/sampler.h"

namespace tessera::data::corpus_test {

using tessera::ConfigError;
using tessera::DataError;

namespace {

// A file of the given bytes, gone at the end of the test.
class File {
 public:
  explicit File(const std::string& content, const std::string& ending = "")
      : path_(::testing::TempDir() + "tessera_corpus_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + std::to_string(content.size()) +
              ending) {
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

TEST(Corpus, Split) {
  const File file(ramp(1000));
  const Corpus corpus(file.path(), {}, {.held_out = 0.1});
  EXPECT_TRUE(corpus.is_bytes());
  EXPECT_EQ(corpus.train().size(), 900);
  ASSERT_EQ(corpus.held_out().size(), 100);
  EXPECT_EQ(corpus.held_out()[0], 900 % 251);
  EXPECT_EQ(corpus.train()[899], 899 % 251);
  EXPECT_EQ(corpus.bytes_per_token(), 1);
  EXPECT_EQ(Corpus(file.path(), {}, {.held_out = 0}).held_out().size(), 0);
}

TEST(Sampler, RowsOfASubRangeAreTheSlice) {
  const File file(ramp(5000));
  const Sampler sampler(Corpus(file.path()), {.seed = 3, .length = 17});
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
  const Sampler sampler(Corpus(file.path(), {}, {.held_out = 0.5}), {.length = 40});
  const Batch batch = sampler.rows(5, 0, 64);
  EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
  EXPECT_EQ(batch.tokens.sizes(), at::IntArrayRef({64, 40}));
  EXPECT_TRUE(at::equal(batch.targets, batch.tokens.add(1).remainder(251)));
  EXPECT_TRUE(at::equal(batch.tokens.slice(1, 1), batch.targets.slice(1, 0, 39)));
}

TEST(Sampler, DependsOnSeedStepAndSample) {
  const File file(ramp(5000));
  const auto tokens = [&](uint64_t seed, int64_t step) {
    return Sampler(Corpus(file.path()), {.seed = seed, .length = 8}).rows(step, 0, 16).tokens;
  };
  EXPECT_TRUE(at::equal(tokens(1, 2), tokens(1, 2)));
  EXPECT_FALSE(at::equal(tokens(1, 2), tokens(1, 3)));
  EXPECT_FALSE(at::equal(tokens(1, 2), tokens(2, 2)));
  EXPECT_FALSE(at::equal(tokens(1, 2)[0], tokens(1, 2)[1]));
}

// Every start is drawn, the first and the last one too, and none that would read held-out bytes as a token to predict.
TEST(Sampler, CoversTheTrainingBytes) {
  const File file(ramp(24));
  const Sampler sampler(Corpus(file.path(), {}, {.held_out = 0.25}), {.length = 4});
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
  const Sampler sampler(Corpus(file.path(), {}, {.held_out = 0.5}), {.length = 9});
  EXPECT_EQ(sampler.held_out_count(), 11);
  const Batch all = sampler.held_out(0, 11);
  EXPECT_EQ(all.tokens[0][0].item<int64_t>(), 100);
  EXPECT_EQ(all.tokens[10][8].item<int64_t>(), 198);
  EXPECT_EQ(all.targets[10][8].item<int64_t>(), 199);
  EXPECT_TRUE(at::equal(sampler.held_out(4, 3).tokens, all.tokens.slice(0, 4, 7)));
  EXPECT_THROW(sampler.held_out(4, 8), DataError);
  EXPECT_EQ(Sampler(Corpus(file.path(), {}, {.held_out = 0}), {.length = 9}).held_out_count(), 0);
  // The last token of a multiple of the length is predicted, and predicts nothing.
  const Sampler multiple(Corpus(file.path(), {}, {.held_out = 0.5}), {.length = 10});
  EXPECT_EQ(multiple.held_out_count(), 9);
  EXPECT_EQ(multiple.held_out(8, 1).targets[0][9].item<int64_t>(), 190);
  EXPECT_THROW(multiple.held_out(9, 1), DataError);
  EXPECT_EQ(Sampler(Corpus(file.path(), {}, {.held_out = 0.25}), {.length = 50}).held_out_count(), 0);
}

TEST(Corpus, UnigramEntropy) {
  const auto entropy = [](const std::string& text) {
    return unigram_entropy(Tokens::of({text.begin(), text.end()}, 256));
  };
  EXPECT_EQ(entropy(""), 0);
  EXPECT_EQ(entropy("aaaa"), 0);
  EXPECT_NEAR(entropy("abab"), std::log(2.0), 1e-15);
  EXPECT_NEAR(entropy("aaab"), 0.75 * std::log(4.0 / 3) + 0.25 * std::log(4.0), 1e-15);
}

std::vector<int64_t> all_of(const Tokens& tokens) {
  std::vector<int64_t> all(static_cast<size_t>(tokens.size()));
  tokens.copy(0, tokens.size(), all.data());
  return all;
}

std::string little_endian(const std::vector<int64_t>& values, size_t width) {
  std::string bytes;
  for (const int64_t value : values) {
    bytes.append(reinterpret_cast<const char*>(&value), width);
  }
  return bytes;
}

TEST(Corpus, DocumentsEndWithTheirToken) {
  const File file("\xEF\xBB\xBF{\"text\": \"ab\", \"id\": 1}\r\n\n  \n{\"text\": \"\"}\n{\"text\": \"c\\u00e9\"}",
                  ".jsonl");
  EXPECT_EQ(all_of(Corpus(file.path(), {}, {.held_out = 0}).train()),
            (std::vector<int64_t>{'a', 'b', 0, 0, 'c', 0xC3, 0xA9, 0}));
}

TEST(Corpus, TokensOfEitherWidthWithAndWithoutAHeader) {
  const std::vector<int64_t> tokens = {1, 258, 65535, 0, 7, 9};
  std::vector<int64_t> header(256, 0);
  header[2] = 6;
  for (const size_t width : {2, 4}) {
    const auto named = width == 2 ? TokenWidth::kTwo : TokenWidth::kFour,
               other = width == 2 ? TokenWidth::kFour : TokenWidth::kTwo;
    const File bare(little_endian(tokens, width), ".bin");
    const Corpus corpus(bare.path(), {}, {.held_out = 0.5, .bin_width = named});
    EXPECT_EQ(all_of(corpus.train()), (std::vector<int64_t>{1, 258, 65535}));
    EXPECT_EQ(all_of(corpus.held_out()), (std::vector<int64_t>{0, 7, 9}));
    EXPECT_FALSE(corpus.is_bytes());
    EXPECT_EQ(corpus.bytes_per_token(), 0);
    header[0] = width == 2 ? 20240520 : 20240801;
    header[1] = width == 2 ? 1 : 7;
    const File headed(little_endian(header, 4) + little_endian(tokens, width), ".bin");
    EXPECT_EQ(all_of(Corpus(headed.path(), {}, {.held_out = 0, .bin_width = other}).train()), tokens);
  }
  for (const int32_t last : {65535, 65536}) {
    EXPECT_EQ(all_of(Tokens::of({0, last}, last + 1)), (std::vector<int64_t>{0, last}));
  }
}

TEST(Corpus, TornFilesAreNamed) {
  const auto says = [](const std::string& content, const std::string& ending, const std::string& part) {
    const File file(content, ending);
    const auto said = message<DataError>([&] { Corpus{file.path()}; });
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  says("{\"text\": \"a\"}\n\n{\"text\": \"b\"\n", ".jsonl", "line 3 is no JSON");
  says("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", ".jsonl", "line 2 has no member \"text\"");
  says("[1]", ".jsonl", "line 1 has no member \"text\"");
  says("{\"text\": 3}", ".jsonl", "line 1 has a \"text\" that is number");
  says("{\"text\": \"\xff\"}", ".jsonl", "line 1 is no JSON");
  says("abc", ".bin", "3 bytes of tokens, which is no multiple of 2");
  std::vector<int64_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 5;
  says(little_endian(header, 4) + "abcd", ".bin", "says 5 tokens, the file has 2");
  header[1] = 3;
  says(little_endian(header, 4) + "abcd", ".bin", "version 3; accepted: version 1");
}

// A document of many megabytes on one line.
TEST(Corpus, ALineMayBeHuge) {
  const std::string text(8 << 20, 'x');
  const File file("{\"text\": \"" + text + "\"}\n", ".jsonl");
  EXPECT_EQ(Corpus(file.path(), {}, {.held_out = 0}).train().size(), static_cast<int64_t>(text.size()) + 1);
}

TEST(Sampler, ATokenBeyondTheModelIsNamed) {
  const File file(little_endian({1, 2, 3, 400, 5, 6}, 2), ".bin");
  const Corpus corpus(file.path(), {}, {.held_out = 0});
  const auto said = message<DataError>([&] { Sampler(corpus, {.length = 5, .vocabulary = 256}).rows(0, 0, 1); });
  EXPECT_NE(said.find("has the token 400, the model has 256; accepted: model.vocab_size of at least 401"),
            std::string::npos)
      << said;
  EXPECT_NO_THROW(Sampler(corpus, {.length = 5, .vocabulary = 401}).rows(0, 0, 1));
}

TEST(Corpus, ErrorsSayWhatToChange) {
  EXPECT_NE(message<DataError>([] { Corpus("/nowhere/text.txt"); }).find("cannot open \"/nowhere/text.txt\""),
            std::string::npos);
  EXPECT_NE(message<DataError>([] { Corpus("/"); }).find("not a regular file"), std::string::npos);
  const File empty("");
  EXPECT_NE(message<DataError>([&] { Corpus{empty.path()}; }).find("is empty"), std::string::npos);
  const File file(ramp(100));
  EXPECT_NE(message<ConfigError>([&] { Corpus(file.path(), {}, {.held_out = 1}); }).find("[0, 1)"), std::string::npos);
  const Corpus corpus(file.path(), {}, {.held_out = 0.5});
  EXPECT_NE(message<DataError>([&] { Sampler(corpus, {.length = 50}); }).find("needs 51; give a longer text"),
            std::string::npos);
  EXPECT_NO_THROW(Sampler(corpus, {.length = 49}));
  EXPECT_THROW(Sampler(corpus, {.length = 0}), ConfigError);
  EXPECT_THROW(Sampler(corpus, {.length = 4}).rows(-1, 0, 1), c10::Error);
}

}  // namespace

}  // namespace tessera::data::corpus_test
