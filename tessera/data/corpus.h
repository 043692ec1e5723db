// What is trained on: the tokens of a file, the last part held out.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/data/tokens.h"
#include "tessera/data/vocabulary.h"

namespace tessera::data {

struct CorpusOptions {
  double held_out = 0.05;                   // the fraction of the tokens, at the end, that training never sees
  TokenWidth bin_width = TokenWidth::kTwo;  // of a .bin file without a header
};

// By the name of the file: `.bin` is pre-tokenised (Tokens::of_bin), `.jsonl` holds documents (for_each_document), each
// followed by the vocabulary's end(), anything else is one text. Immutable; copies share; thread-safe.
class Corpus {
 public:
  // Reads and tokenises the whole file, on the calling thread; files of bytes and of tokens are mapped, not read.
  // Throws DataError if the file cannot be read, is empty or torn, ConfigError if `held_out` is not in [0, 1) or if
  // documents have no token that ends them.
  explicit Corpus(const std::string& path, Vocabulary vocabulary = {}, const CorpusOptions& options = {});

  const std::string& path() const { return path_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  const Tokens& train() const { return train_; }
  const Tokens& held_out() const { return held_out_; }

  // Whether each token is a byte of text.
  bool is_bytes() const { return is_bytes_; }

  // "bytes" or "tokens", for messages.
  const char* unit() const { return is_bytes_ ? "bytes" : "tokens"; }

  // Bytes of text for each held-out token: 1 where tokens are bytes, 0 if there is none or the text is not known, as in
  // a .bin file without a tokenizer.
  double bytes_per_token() const;

 private:
  std::string path_;
  Vocabulary vocabulary_;
  bool is_bytes_ = true;
  Tokens train_, held_out_;
};

}  // namespace tessera::data
