#include "tessera/data/corpus.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/data/jsonl.h"

namespace tessera::data {
namespace {

bool is_bin(const std::string& path) { return path.ends_with(".bin"); }

Tokens tokens_of_documents(const MappedFile& file, const Vocabulary& vocabulary) {
  TESSERA_CHECK_AS(ConfigError, vocabulary.end(), "[data] the documents of \"", file.path(),
                   "\" need a token that ends them; accepted: "
                   "data.eos, the text of a token of the tokenizer");
  std::vector<int32_t> tokens;
  for_each_document(file, [&](std::string_view text) {
    const auto document = vocabulary.encode_document(text);
    tokens.insert(tokens.end(), document.begin(), document.end());
    if (document.empty() || document.back() != *vocabulary.end()) {
      tokens.push_back(*vocabulary.end());
    }
  });
  return Tokens::of(tokens, vocabulary.size());
}

Tokens read_tokens(const MappedFile& file, const Vocabulary& vocabulary, const CorpusOptions& options) {
  if (is_bin(file.path())) {
    return Tokens::of_bin(file, options.bin_width);
  }
  if (file.path().ends_with(".jsonl")) {
    return tokens_of_documents(file, vocabulary);
  }
  return vocabulary.is_bytes() ? Tokens::of_bytes(file)
                               : Tokens::of(vocabulary.encode_document(file.text()), vocabulary.size());
}

}  // namespace

Corpus::Corpus(const std::string& path, Vocabulary vocabulary, const CorpusOptions& options)
    : path_(path), vocabulary_(std::move(vocabulary)), is_bytes_(vocabulary_.is_bytes() && !is_bin(path)) {
  TESSERA_CHECK_AS(ConfigError, options.held_out >= 0 && options.held_out < 1, "[data] held-out fraction ",
                   options.held_out, "; it must lie in [0, 1)");
  const auto all = read_tokens(MappedFile(path), vocabulary_, options);
  const auto held_out = static_cast<int64_t>(std::floor(static_cast<double>(all.size()) * options.held_out));
  train_ = all.slice(0, all.size() - held_out);
  held_out_ = all.slice(all.size() - held_out, held_out);
}

double Corpus::bytes_per_token() const {
  if (is_bytes_) {
    return 1;
  }
  if (vocabulary_.is_bytes() || held_out_.size() == 0) {
    return 0;
  }
  int64_t bytes = 0;
  for (int64_t at = 0; at < held_out_.size(); ++at) {
    bytes += static_cast<int64_t>(vocabulary_.bytes_of(static_cast<int32_t>(held_out_[at])).size());
  }
  return static_cast<double>(bytes) / static_cast<double>(held_out_.size());
}

}  // namespace tessera::data
