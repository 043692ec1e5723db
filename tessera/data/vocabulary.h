// How text becomes tokens and tokens become text: by a tokenizer.json, or byte by byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Immutable; copies share; thread-safe.
class Vocabulary {
 public:
  // 256 tokens, the bytes. Byte 0 ends a document.
  Vocabulary() = default;

  // The tokens of a tokenizer. `end` is the text of the token that ends a document; if empty, the first of
  // <|endoftext|>,
  // <|end_of_text|>, </s>, <eos> that the tokenizer has, or else none. Throws DataError if no token is called `end`.
  Vocabulary(Tokenizer tokenizer, const std::string& end);

  bool is_bytes() const { return !tokenizer_; }

  // Rows that an embedding needs.
  int64_t size() const { return tokenizer_ ? tokenizer_->size() : 256; }

  // The token that ends a document, if there is one.
  std::optional<int32_t> end() const { return end_; }

  // Its text in the tokenizer's file; empty where no token ends a document, or tokens are bytes.
  const std::string& end_name() const { return end_name_; }

  // Whether a text that does not begin with a space gets one in front.
  bool puts_space_in_front() const { return tokenizer_ && tokenizer_->puts_space_in_front(); }

  // A whole document, with what the tokenizer puts around one, without the token that ends it.
  std::vector<int32_t> encode_document(std::string_view text) const;

  // The start of a document: what the tokenizer puts behind one is left out. Never empty: an empty prompt is the end of
  // the document before. Throws ConfigError for an empty prompt if no token ends a document.
  std::vector<int32_t> encode_prompt(std::string_view text) const;

  // The bytes of a token; a special one has none. An id beyond the vocabulary, which a model with more rows can give,
  // too.
  std::string bytes_of(int32_t id) const;

 private:
  std::optional<Tokenizer> tokenizer_;
  std::string end_name_;
  std::optional<int32_t> end_ = 0;
};

}  // namespace tessera::data
