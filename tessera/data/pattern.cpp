#define PCRE2_CODE_UNIT_WIDTH 8

#include "tessera/data/pattern.h"

#include <array>
#include <string>

#include <pcre2.h>

#include "tessera/base/error.h"
#include "tessera/data/pattern_dialect.h"
#include "tessera/data/utf8.h"

namespace tessera::data {
namespace {

std::string message_of_code(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct Pattern::Compiled {
  Compiled(std::string_view expression, const std::string& translated, uint32_t options) : expression(expression) {
    int error = 0;
    PCRE2_SIZE where = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                         options | PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error, &where, nullptr);
    TESSERA_CHECK_AS(DataError, code != nullptr, "[tokenizer] the pattern ", expression,
                     " does not compile: ", message_of_code(error),
                     "; accepted: a regular expression as in a tokenizer.json");
    is_fast = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  // Machine code first; its stack is small, so that a match which needs more is interpreted.
  int match(std::string_view text, size_t start, pcre2_match_data* found) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int result =
        is_fast ? pcre2_jit_match(code, subject, text.size(), start, 0, found, nullptr) : PCRE2_ERROR_JIT_STACKLIMIT;
    return result == PCRE2_ERROR_JIT_STACKLIMIT
               ? pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, found, nullptr)
               : result;
  }

  std::string expression;
  pcre2_code* code = nullptr;
  bool is_fast = false;
};

Pattern::Pattern(std::string_view expression) {
  TESSERA_CHECK_AS(DataError, valid_utf8_prefix(expression) == expression.size(),
                   "[tokenizer] a pattern that is not UTF-8; ",
                   "accepted: a regular expression as in a tokenizer.json");
  compiled_ = std::make_shared<Compiled>(expression, to_pcre2(expression), PCRE2_UCP);
}

Pattern Pattern::literal(std::string_view text) {
  return Pattern(std::make_shared<const Compiled>(text, std::string(text), PCRE2_LITERAL));
}

void Pattern::for_each_match(std::string_view text, c10::function_ref<void(size_t, size_t)> found) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr));
  for (size_t start = 0; start < text.size();) {
    const int result = compiled_->match(text, start, match.get());
    if (result == PCRE2_ERROR_NOMATCH) {
      return;
    }
    TESSERA_CHECK_AS(DataError, result > 0, "[tokenizer] the pattern ", compiled_->expression, " fails on a text of ",
                     text.size(), " bytes: ", message_of_code(result), "; split the text into smaller documents");
    const auto* span = pcre2_get_ovector_pointer(match.get());
    if (span[0] == span[1]) {
      start = span[0] + first_character(text.substr(span[0])).size() + (span[0] == text.size() ? 1 : 0);
      continue;
    }
    found(span[0], span[1]);
    start = span[1];
  }
}

bool Pattern::matches(std::string_view text) const {
  bool has_match = false;
  for_each_match(text, [&](size_t, size_t) { has_match = true; });
  return has_match;
}

}  // namespace tessera::data
