// Tokenizers: any bytes there and back, long texts in time. Their ids are compared in tokenizer_reference_test.py.
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/utf8.h"
#include "tessera/data/vocabulary.h"

namespace tessera::data::tokenizer_test {
namespace {

Tokenizer tokenizer(const std::string& name) { return Tokenizer::read(TESSERA_TOKENIZERS + name + ".json"); }

TEST(Tokenizer, WhiteSpaceCounts) {
  const auto mine = tokenizer("llama3");
  EXPECT_NE(mine.encode("a  b"), mine.encode("a b"));
  EXPECT_NE(mine.encode("a\r\nb"), mine.encode("a\nb"));
}

// Of random characters, words and bytes that are no UTF-8.
std::string random_text(std::mt19937& random, bool may_be_invalid) {
  static const std::vector<std::string> parts = {" ",          "  ",
                                                 "\n",         "\r\n",
                                                 "\t",         "the",
                                                 " river",     "it's",
                                                 "123456",     "\u00e9",
                                                 "e\u0301",    "\u4e2d\u6587",
                                                 "\U0001F600", "\U0001F469\u200d\U0001F467",
                                                 "\u00a0",     "\u3000",
                                                 "!?",         std::string(1, '\0'),
                                                 "<|eot_id|>", "\u0e19\u0e49"};
  std::string text;
  for (auto count = random() % 40; count > 0; --count) {
    text += may_be_invalid && random() % 3 == 0 ? std::string(1, static_cast<char>(random() % 256))
                                                : parts[random() % parts.size()];
  }
  return text;
}

TEST(Tokenizer, AnyBytesComeBack) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto mine = tokenizer("llama3");
  for (int i = 0; i < 3000; ++i) {
    const auto text = random_text(random, i % 2 == 0);
    const auto ids = mine.encode(text, SpecialTokens::kWithout);
    EXPECT_EQ(mine.decode(ids, SpecialTokens::kWith), text);
  }
}

// Valid parts of a text have the ids that they have alone; bytes that are none come in between.
TEST(Tokenizer, InvalidBytesArePiecesOfTheirOwn) {
  const auto mine = tokenizer("llama3");
  const auto without = SpecialTokens::kWithout;
  auto expected = mine.encode("the river", without);
  for (const auto& part : {mine.encode("\xff\xc3", without), mine.encode(" it's", without)}) {
    expected.insert(expected.end(), part.begin(), part.end());
  }
  EXPECT_EQ(mine.encode("the river\xff\xc3 it's", without), expected);
  EXPECT_EQ(mine.encode("\xff\xc3", without).size(), 2u);
}

TEST(Tokenizer, SpecialTokensCanBeLeftOut) {
  const auto mine = tokenizer("llama3");
  EXPECT_EQ(mine.prefix(), std::vector<int32_t>{0});
  EXPECT_TRUE(mine.suffix().empty());
  EXPECT_EQ(mine.encode("a").front(), 0);
  EXPECT_NE(mine.encode("a", SpecialTokens::kWithout).front(), 0);
  EXPECT_EQ(mine.decode(mine.encode("a<|eot_id|>b")), "ab");
  EXPECT_EQ(mine.decode(mine.encode("a<|eot_id|>b"), SpecialTokens::kWith), "<|begin_of_text|>a<|eot_id|>b");
  EXPECT_EQ(mine.id_of("<|eot_id|>"), 2);
  EXPECT_EQ(mine.id_of("<|none|>"), std::nullopt);
}

// A piece of one kind of character has no end. Were merging quadratic, this would take hours: no test may.
TEST(Tokenizer, LongPiecesTakeNoLonger) {
  for (const char* unit : {"a", " ", "\u4e2d", "ab", "\n"}) {
    std::string text;
    while (text.size() < 2'000'000) {
      text += unit;
    }
    const auto mine = tokenizer("llama3");
    EXPECT_EQ(mine.decode(mine.encode(text)), text) << unit;
  }
}

TEST(Vocabulary, FindsWhatEndsADocument) {
  EXPECT_EQ(Vocabulary(tokenizer("gpt2"), "").end(), 0);
  EXPECT_EQ(Vocabulary(tokenizer("llama3"), "").end(), 1);
  EXPECT_EQ(Vocabulary(tokenizer("llama3"), "<|eot_id|>").end(), 2);
  EXPECT_EQ(Vocabulary(tokenizer("digits"), "").end(), 1);
  EXPECT_EQ(Vocabulary().end(), 0);
  EXPECT_THROW(Vocabulary(tokenizer("gpt2"), "<|eot|>"), tessera::DataError);
}

TEST(Vocabulary, PromptsBeginADocument) {
  const Vocabulary llama(tokenizer("llama3"), ""), roberta(tokenizer("digits"), "");
  EXPECT_EQ(llama.encode_prompt(""), std::vector<int32_t>{0});
  EXPECT_EQ(roberta.encode_document("a").back(), 1);
  EXPECT_NE(roberta.encode_prompt("a").back(), 1);
  EXPECT_EQ(Vocabulary().encode_prompt("ab"), (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(llama.bytes_of(1), "");
  EXPECT_EQ(llama.bytes_of(100000), "");
}

// Against the definition: a text is valid if its characters, written again one by one, are the text.
TEST(Utf8, StreamsShowWholeCharacters) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const auto text = random_text(random, false);
    Utf8Stream stream;
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t count = std::min<size_t>(1 + random() % 3, text.size() - at);
      const auto part = stream.push(std::string_view(text).substr(at, count));
      EXPECT_EQ(valid_utf8_prefix(part), part.size());
      shown += part;
      at += count;
    }
    EXPECT_EQ(shown + stream.finish(), text);
  }
}

TEST(Utf8, WhatIsInvalid) {
  const auto shown = [](const std::string& text) {
    Utf8Stream stream;
    const auto part = stream.push(text);
    return part + stream.finish();
  };
  EXPECT_EQ(shown("a\xff"
                  "b"),
            "a\ufffdb");
  EXPECT_EQ(shown("\xf0\x9f\x98"), "\ufffd");
  EXPECT_EQ(shown("\xe4\xb8"
                  "a"),
            "\ufffda");
  EXPECT_EQ(shown("\xc0\x80"), "\ufffd\ufffd");
  for (const std::string text : {"\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\xf5\x80\x80\x80", "\x80"}) {
    EXPECT_EQ(valid_utf8_prefix(text), 0u);
  }
  for (const std::string text : {"\xed\x9f\xbf", "\xf4\x8f\xbf\xbf", "\xe0\xa0\x80", "\x7f", "12345678\xc2\x80"}) {
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
  EXPECT_EQ(leading_space("\u00a0 \u3000\u200bx"), 6u);
  EXPECT_EQ(trailing_space("x\u200b\t\u2028"), 4u);
  EXPECT_EQ(first_characters("a\u00e9\U0001F600z", 3), "a\u00e9\U0001F600");
}

}  // namespace

}  // namespace tessera::data::tokenizer_test
