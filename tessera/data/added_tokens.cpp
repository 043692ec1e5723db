#include "tessera/data/added_tokens.h"

#include <algorithm>

#include "tessera/data/utf8.h"

namespace tessera::data {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), word_(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])") {
  for (const auto& token : tokens_) {
    if (!token.content.empty()) {
      (token.normalized ? second_ : first_)[static_cast<uint8_t>(token.content.front())].push_back(&token);
    }
  }
  for (auto* search : {&first_, &second_}) {
    for (auto& same_start : *search) {
      std::stable_sort(same_start.begin(), same_start.end(),
                       [](const auto* a, const auto* b) { return a->content.size() > b->content.size(); });
    }
  }
}

void AddedTokens::for_each_part(std::string_view text, c10::function_ref<void(std::string_view, int32_t)> part) const {
  run(first_, text, [&](std::string_view found, int32_t id) {
    if (id >= 0) {
      part(found, id);
    } else {
      run(second_, found, part);
    }
  });
}

const AddedToken* AddedTokens::find(const Search& search, std::string_view text, size_t from, size_t& at) const {
  for (at = from; at < text.size(); ++at) {
    for (const auto* token : search[static_cast<uint8_t>(text[at])]) {
      if (text.substr(at).starts_with(token->content)) {
        return token;
      }
    }
  }
  return nullptr;
}

bool AddedTokens::stands_alone(std::string_view before, std::string_view after) const {
  return !word_.matches(last_character(before)) && !word_.matches(first_character(after));
}

void AddedTokens::run(const Search& search, std::string_view text,
                      c10::function_ref<void(std::string_view, int32_t)> part) const {
  size_t done = 0, at = 0;
  for (size_t from = 0; const auto* token = find(search, text, from, at);) {
    size_t begin = at, end = from = at + token->content.size();
    if (token->single_word && !stands_alone(text.substr(0, begin), text.substr(end))) {
      continue;
    }
    begin -= token->lstrip ? trailing_space(text.substr(0, begin)) : 0;
    end += token->rstrip ? leading_space(text.substr(end)) : 0;
    begin = std::max(begin, done);
    if (done < begin) {
      part(text.substr(done, begin - done), -1);
    }
    part(text.substr(begin, end - begin), token->id);
    done = end;
  }
  if (done < text.size()) {
    part(text.substr(done), -1);
  }
}

}  // namespace tessera::data
