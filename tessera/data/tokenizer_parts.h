// What a Tokenizer is made of; shared by its reader and its work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/flat_hash_map.h>

#include "tessera/data/added_tokens.h"
#include "tessera/data/bpe.h"
#include "tessera/data/pre_tokenizer.h"

namespace tessera::data {

struct TokenizerParts {
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::vector<std::optional<std::string>> bytes;  // by id; nothing where there is no token
  std::vector<bool> is_special;                   // by id
  ska::flat_hash_map<std::string, int32_t> ids;   // by text as in the file
  std::vector<int32_t> prefix, suffix;
};

}  // namespace tessera::data
