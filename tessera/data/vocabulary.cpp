#include "tessera/data/vocabulary.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/added_tokens.h"

namespace tessera::data {
namespace {

std::string special_names(const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  for (const auto& token : tokenizer.added_tokens()) {
    if (token.special && names.size() < 20) {
      names.push_back(token.content);
    }
  }
  return names.empty() ? "a token of the tokenizer" : base::join(names, ", ");
}

// The text of the token that ends a document; empty if there is none.
std::string find_end(const Tokenizer& tokenizer, const std::string& end) {
  if (!end.empty()) {
    TESSERA_CHECK_AS(DataError, tokenizer.id_of(end), "[tokenizer] no token is called \"", end,
                     "\", which is to end a document; accepted: ", special_names(tokenizer));
    return end;
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (tokenizer.id_of(name)) {
      return name;
    }
  }
  return "";
}

std::vector<int32_t> bytes_as_tokens(std::string_view text) {
  const auto* first = reinterpret_cast<const uint8_t*>(text.data());
  return {first, first + text.size()};
}

}  // namespace

Vocabulary::Vocabulary(Tokenizer tokenizer, const std::string& end)
    : tokenizer_(std::move(tokenizer)), end_name_(find_end(*tokenizer_, end)), end_(tokenizer_->id_of(end_name_)) {}

std::vector<int32_t> Vocabulary::encode_document(std::string_view text) const {
  return tokenizer_ ? tokenizer_->encode(text) : bytes_as_tokens(text);
}

std::vector<int32_t> Vocabulary::encode_prompt(std::string_view text) const {
  auto tokens = tokenizer_ ? tokenizer_->prefix() : std::vector<int32_t>();
  const auto of_text = tokenizer_ ? tokenizer_->encode(text, SpecialTokens::kWithout) : bytes_as_tokens(text);
  tokens.insert(tokens.end(), of_text.begin(), of_text.end());
  if (tokens.empty()) {
    TESSERA_CHECK_AS(
        ConfigError, end_,
        "[generate] an empty prompt, and no token ends a document; accepted: a prompt of at least one token");
    tokens.push_back(*end_);
  }
  return tokens;
}

std::string Vocabulary::bytes_of(int32_t id) const {
  if (!tokenizer_) {
    return id < 256 ? std::string(1, static_cast<char>(id)) : "";
  }
  return tokenizer_->has(id) ? tokenizer_->decode({&id, 1}) : "";
}

}  // namespace tessera::data
