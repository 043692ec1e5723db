// A `tokenizer.json` of byte-level byte-pair encoding, as Hugging Face's `tokenizers` writes it: GPT-2's, Llama 3's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

struct AddedToken;
struct TokenizerParts;

enum class SpecialTokens { kWithout, kWith };

// Text to token ids and back, id for id as `tokenizers` does it. Immutable; copies share; thread-safe.
//
// Supported: models BPE; pre-tokenizers ByteLevel, Split, Digits, Sequence; post-processors ByteLevel,
// TemplateProcessing, RobertaProcessing, Sequence; decoder ByteLevel; no normalizer. Anything else in a file is refused
// by name.
//
// Any bytes can be encoded: those that are no UTF-8 become pieces of their own, so that decode(encode(x)) is x, byte
// for byte, for every x when no added token strips spaces and no space is put in front.
class Tokenizer {
 public:
  // Throws DataError that names the file, the part of it and what is accepted.
  static Tokenizer read(const std::string& path);

  // The same from the content of a file; `source` stands for its name in messages.
  static Tokenizer parse(std::string_view json, const std::string& source);

  // One more than the largest id: the rows that an embedding needs.
  int64_t size() const;

  // kWith: in front and behind what the post-processor adds, such as <|begin_of_text|>. Added tokens that stand in the
  // text are found in both.
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special = SpecialTokens::kWith) const;

  // The bytes of the tokens one after the other; kWithout leaves special tokens out. Throws DataError for an id that no
  // token has.
  std::string decode(std::span<const int32_t> ids, SpecialTokens special = SpecialTokens::kWithout) const;

  // Whether a token has the id.
  bool has(int32_t id) const;

  // The bytes of one token. Throws DataError if no token has the id.
  const std::string& bytes_of(int32_t id) const;

  // The id of a token by its text as in the file, or nothing.
  std::optional<int32_t> id_of(std::string_view token) const;

  // What the post-processor adds in front of a text and behind it.
  const std::vector<int32_t>& prefix() const;
  const std::vector<int32_t>& suffix() const;

  // Whether a text that does not begin with a space gets one in front, which decoding gives back.
  bool puts_space_in_front() const;

  // In the order of the file.
  const std::vector<AddedToken>& added_tokens() const;

 private:
  friend class TokenizerReader;
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const TokenizerParts> parts_;
};

}  // namespace tessera::data
