#include "tessera/data/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace tessera::data {
namespace {

// The matches and what lies between them, in order.
void for_each_span(const Pattern& pattern, std::string_view text,
                   c10::function_ref<void(std::string_view, bool)> span) {
  size_t done = 0;
  pattern.for_each_match(text, [&](size_t begin, size_t end) {
    if (done < begin) {
      span(text.substr(done, begin - done), false);
    }
    span(text.substr(begin, end - begin), true);
    done = end;
  });
  if (done < text.size()) {
    span(text.substr(done), false);
  }
}

void split(const PreTokenizerStep& step, std::string_view text, c10::function_ref<void(std::string_view)> piece) {
  std::string_view joined;  // neighbours that separate, of kContiguous
  for_each_span(*step.pattern, text, [&](std::string_view span, bool is_match) {
    const bool separates = is_match != step.is_inverted;
    if (separates && step.behavior == SplitBehavior::kRemoved) {
      return;
    }
    if (separates && step.behavior == SplitBehavior::kContiguous) {
      joined = joined.empty() ? span : std::string_view(joined.data(), joined.size() + span.size());
      return;
    }
    if (!joined.empty()) {
      piece(std::exchange(joined, {}));
    }
    piece(span);
  });
  if (!joined.empty()) {
    piece(joined);
  }
}

}  // namespace

PreTokenizerStep PreTokenizer::gpt2_split() {
  static const Pattern pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  return {.pattern = pattern};
}

bool PreTokenizer::puts_space_in_front() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const PreTokenizerStep& step) { return step.kind == PreTokenizerStep::Kind::kPrefixSpace; });
}

void PreTokenizer::for_each_piece(std::string_view text, c10::function_ref<void(std::string_view)> piece) const {
  if (!text.empty()) {
    run(0, text, piece);
  }
}

void PreTokenizer::run(size_t step, std::string_view text, c10::function_ref<void(std::string_view)> piece) const {
  if (step == steps_.size()) {
    piece(text);
  } else if (steps_[step].kind == PreTokenizerStep::Kind::kSplit) {
    split(steps_[step], text, [&](std::string_view part) { run(step + 1, part, piece); });
  } else if (text.front() == ' ') {
    run(step + 1, text, piece);
  } else {
    run(step + 1, " " + std::string(text), piece);
  }
}

}  // namespace tessera::data
