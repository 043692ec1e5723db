#include "tessera/data/tokens.h"

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr int64_t kHeaderBytes = 1024;

template <typename T>
std::pair<std::shared_ptr<const void>, const void*> narrowed(const std::vector<int32_t>& tokens) {
  const auto owner = std::make_shared<std::vector<T>>(tokens.begin(), tokens.end());
  return {owner, owner->data()};
}

// The width that an llm.c header names, or nothing if there is none.
std::optional<TokenWidth> width_of_header(const MappedFile& file, const std::array<int32_t, 3>& header) {
  constexpr int32_t kMagicTwo = 20240520, kMagicFour = 20240801;
  const bool has_magic = file.bytes().size() >= kHeaderBytes && (header[0] == kMagicTwo || header[0] == kMagicFour);
  if (!has_magic) {
    return std::nullopt;
  }
  const auto version = header[0] == kMagicTwo ? 1 : 7;
  TESSERA_CHECK_AS(DataError, header[1] == version, "[data] \"", file.path(), "\" has an llm.c header of magic ",
                   header[0], ", version ", header[1], "; accepted: version ", version);
  return header[0] == kMagicTwo ? TokenWidth::kTwo : TokenWidth::kFour;
}

}  // namespace

Tokens Tokens::of_bytes(const MappedFile& file) {
  return {file.mapping(), file.bytes().data(), static_cast<int64_t>(file.bytes().size()), TokenWidth::kByte};
}

Tokens Tokens::of(const std::vector<int32_t>& tokens, int64_t vocabulary) {
  const bool is_small = vocabulary <= 65536;
  auto [owner, start] = is_small ? narrowed<uint16_t>(tokens) : narrowed<uint32_t>(tokens);
  return {std::move(owner), start, static_cast<int64_t>(tokens.size()),
          is_small ? TokenWidth::kTwo : TokenWidth::kFour};
}

Tokens Tokens::of_bin(const MappedFile& file, TokenWidth width) {
  const auto bytes = static_cast<int64_t>(file.bytes().size());
  std::array<int32_t, 3> header{};
  std::memcpy(header.data(), file.bytes().data(), std::min<size_t>(sizeof(header), file.bytes().size()));
  const auto named = width_of_header(file, header);
  const auto start = named ? kHeaderBytes : 0;
  const auto each = static_cast<int64_t>(named.value_or(width));
  TESSERA_CHECK_AS(DataError, (bytes - start) % each == 0, "[data] \"", file.path(), "\" has ", bytes - start,
                   " bytes of tokens, which is no multiple of ", each,
                   "; accepted: a complete file, and data.token_dtype as it was written (uint16 or uint32)");
  const auto count = (bytes - start) / each;
  TESSERA_CHECK_AS(DataError, !named || header[2] == count, "[data] the header of \"", file.path(), "\" says ",
                   header[2], " tokens, the file has ", count, "; accepted: a complete file");
  return {file.mapping(), file.bytes().data() + start, count, named.value_or(width)};
}

int64_t Tokens::operator[](int64_t at) const {
  int64_t token = 0;
  copy(at, 1, &token);
  return token;
}

void Tokens::copy(int64_t begin, int64_t count, int64_t* out) const {
  const auto widen = [&](auto of) {
    const auto* first = reinterpret_cast<const decltype(of)*>(start_) + begin;
    std::copy(first, first + count, out);
  };
  switch (width_) {
    case TokenWidth::kByte: return widen(uint8_t{});
    case TokenWidth::kTwo: return widen(uint16_t{});
    case TokenWidth::kFour: return widen(uint32_t{});
  }
}

Tokens Tokens::slice(int64_t begin, int64_t count) const {
  return {owner_, start_ + begin * static_cast<int64_t>(width_), count, width_};
}

double unigram_entropy(const Tokens& tokens) {
  std::map<int64_t, int64_t> counts;
  for (int64_t at = 0; at < tokens.size(); ++at) {
    ++counts[tokens[at]];
  }
  double entropy = 0;
  for (const auto& [token, count] : counts) {
    const double share = static_cast<double>(count) / static_cast<double>(tokens.size());
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace tessera::data
