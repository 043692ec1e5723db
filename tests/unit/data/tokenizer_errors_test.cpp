// What a tokenizer.json may not contain is refused by name, at load.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/data/pattern.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data::tokenizer_errors_test {

using nlohmann::json;

namespace {

struct Case {
  const char* name;
  const char* patch;  // parts of a good file that are replaced; the model is patched
  const char* at_fault;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

const Case kCases[] = {
    {"WordPiece", R"({"model": {"type": "WordPiece"}})", "has the model WordPiece; accepted: BPE"},
    {"Unigram", R"({"model": {"type": "Unigram"}})", "has the model Unigram; accepted: BPE"},
    {"NoModel", R"({"model": null})", "has no \"model\""},
    {"Normalizer", R"({"normalizer": {"type": "NFC"}})", "has the normalizer NFC; accepted: no normalizer"},
    {"PreTokenizer", R"({"pre_tokenizer": {"type": "Metaspace"}})",
     "has the pre-tokenizer Metaspace; accepted: ByteLevel"},
    {"NoPreTokenizer", R"({"pre_tokenizer": null})", "has the pre-tokenizer null"},
    {"NotByteLevel", R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}})",
     "has no ByteLevel pre-tokenizer"},
    {"BehindByteLevel",
     R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}})",
     "has the pre-tokenizer Digits behind ByteLevel"},
    {"Behavior", R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext"}})",
     "has the behavior MergedWithNext"},
    {"Pattern", R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}})",
     "the pattern (a does not compile"},
    {"Decoder", R"({"decoder": {"type": "WordPiece"}})", "has the decoder WordPiece; accepted: ByteLevel"},
    {"PostProcessor", R"({"post_processor": {"type": "BertProcessing"}})", "has the post-processor BertProcessing"},
    {"Truncation", R"({"truncation": {"max_length": 3}})", "has a truncation; accepted: null"},
    {"Dropout", R"({"model": {"dropout": 0.1}})", "has dropout in its model"},
    {"ByteFallback", R"({"model": {"byte_fallback": true}})", "has byte_fallback"},
    {"Prefix", R"({"model": {"continuing_subword_prefix": "##"}})", "has continuing_subword_prefix \"##\""},
    {"UnknownPart", R"({"model": {"cache": 3}})", "has \"cache\" in its model"},
    {"MissingByte", R"({"model": {"vocab": {"!": null}, "merges": []}})",
     "lacks 1 of the 256 bytes, the first is 33 (\"!\")"},
    {"TokenTwice", R"({"model": {"vocab": {"new": 5}}})", "gives the id 5 to two tokens"},
    {"NegativeId", R"({"model": {"vocab": {"new": -5}}})", "gives \"new\" the id -5"},
    {"MergeOfNoToken", R"({"model": {"merges": ["the zz"]}})", "has \"zz\" in merge 0, which its vocabulary lacks"},
    {"MergeOfThree", R"({"model": {"merges": ["t h e"]}})", "has merge 0 of 3 parts"},
    {"AddedTokenElsewhere", R"({"added_tokens": [{"id": 9, "content": "!"}]})",
     "gives the added token \"!\" the id 9, its model 1"},
    {"WrongType", R"({"model": {"vocab": 3}})", "has a part of the wrong type"},
};

class TokenizerErrors : public testing::TestWithParam<Case> {};

TEST_P(TokenizerErrors, AreNamed) {
  std::ifstream file(std::string(TESSERA_TOKENIZERS) + "gpt2.json");
  auto content = json::parse(file);
  const auto patch = json::parse(GetParam().patch);
  ASSERT_NO_THROW(Tokenizer::parse(content.dump(), "good.json"));
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      content[key].merge_patch(value);
    } else {
      content[key] = value;
    }
  }
  try {
    Tokenizer::parse(content.dump(), "bad.json");
    FAIL() << "no error";
  } catch (const tessera::DataError& error) {
    const auto message = tessera::base::message_of(error);
    EXPECT_NE(message.find(GetParam().at_fault), std::string::npos) << message;
    EXPECT_NE(message.find("; accepted: "), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerErrors, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(TokenizerFile, ThatIsNoneIsNamed) {
  EXPECT_THROW(Tokenizer::parse("{\"a\": ", "a.json"), tessera::DataError);
  EXPECT_THROW(Tokenizer::parse("[]", "a.json"), tessera::DataError);
  EXPECT_THROW(Tokenizer::read("/nowhere/tokenizer.json"), tessera::DataError);
}

// Two engines read these differently, or one not at all.
TEST(Pattern, RefusesWhatIsReadDifferently) {
  for (const char* expression : {"^a", "a$", "\\ha", "\\Xa", "[a[bc]]", "[a&&b]", "a{1,3}+", "(?m:a)", "(?<n>a)",
                                 "[\\S]", "\\ba", "\\1", "\\", "[[:alpha:]]"}) {
    EXPECT_THROW(Pattern{expression}, tessera::DataError) << expression;
  }
}

std::vector<std::string> matches_of(const std::string& expression, const std::string& text) {
  std::vector<std::string> all;
  Pattern(expression).for_each_match(text, [&](size_t begin, size_t end) {
    all.push_back(text.substr(begin, end - begin));
  });
  return all;
}

using Texts = std::vector<std::string>;

TEST(Pattern, ReadsUnicode) {
  EXPECT_EQ(matches_of(R"(\p{L}+)", "aé中1ß٣"), (Texts{"aé中", "ß"}));
  EXPECT_EQ(matches_of(R"(\s+)", "a\u180eb\u2003\u0085c"), (Texts{"\u2003\u0085"}));
  EXPECT_EQ(matches_of(R"(\s+(?!\S)|\s+)", "a   b "), (Texts{"  ", " ", " "}));
  EXPECT_EQ(matches_of(R"((?i:'s|'t))", "'S'ſ'T"), (Texts{"'S", "'ſ", "'T"}));
  EXPECT_EQ(matches_of(R"([^\s\p{L}]+)", "a!? 1"), (Texts{"!?", "1"}));
  EXPECT_EQ(matches_of("a*", "aabca"), (Texts{"aa", "a"}));
  EXPECT_EQ(matches_of(R"(\p{Han}+)", "ー中、文"), (Texts{"中", "文"}));
}

}  // namespace

}  // namespace tessera::data::tokenizer_errors_test
