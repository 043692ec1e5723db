#include "tessera/data/tokenizer.h"

#include "tessera/base/error.h"
#include "tessera/data/tokenizer_parts.h"
#include "tessera/data/utf8.h"

namespace tessera::data {

int64_t Tokenizer::size() const { return static_cast<int64_t>(parts_->bytes.size()); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (special == SpecialTokens::kWith) {
    ids = parts_->prefix;
  }
  const auto encode_piece = [&](std::string_view piece) { parts_->bpe.encode(piece, ids); };
  while (!text.empty()) {
    const auto valid = text.substr(0, valid_utf8_prefix(text));
    parts_->added.for_each_part(valid, [&](std::string_view part, int32_t id) {
      if (id >= 0) {
        ids.push_back(id);
      } else {
        parts_->pre_tokenizer.for_each_piece(part, encode_piece);
      }
    });
    text.remove_prefix(valid.size());
    const auto invalid = text.substr(0, invalid_utf8_prefix(text));
    if (!invalid.empty()) {
      encode_piece(invalid);
    }
    text.remove_prefix(invalid.size());
  }
  if (special == SpecialTokens::kWith) {
    ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialTokens special) const {
  std::string text;
  for (const int32_t id : ids) {
    const auto& bytes = bytes_of(id);
    if (special == SpecialTokens::kWith || !parts_->is_special[static_cast<size_t>(id)]) {
      text += bytes;
    }
  }
  return text;
}

bool Tokenizer::has(int32_t id) const { return 0 <= id && id < size() && parts_->bytes[static_cast<size_t>(id)]; }

const std::string& Tokenizer::bytes_of(int32_t id) const {
  TESSERA_CHECK_AS(DataError, has(id), "[tokenizer] no token has the id ", id,
                   "; accepted: ids of its vocabulary, which are below ", size());
  return *parts_->bytes[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = parts_->ids.find(std::string(token));
  return found == parts_->ids.end() ? std::nullopt : std::optional(found->second);
}

const std::vector<int32_t>& Tokenizer::prefix() const { return parts_->prefix; }
const std::vector<int32_t>& Tokenizer::suffix() const { return parts_->suffix; }
bool Tokenizer::puts_space_in_front() const { return parts_->pre_tokenizer.puts_space_in_front(); }
const std::vector<AddedToken>& Tokenizer::added_tokens() const { return parts_->added.all(); }

}  // namespace tessera::data
