#include "tessera/data/pattern_dialect.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::string_view kSpace = R"(\p{Z}\x09-\x0d\x{85})";
constexpr std::string_view kWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";  // as Oniguruma has it
constexpr std::string_view kGroups[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"};

// Walks an expression once, writing the other dialect.
class Translator {
 public:
  explicit Translator(std::string_view expression) : all_(expression), rest_(expression) {}

  std::string run() {
    while (!rest_.empty()) {
      const char next = rest_.front();
      if (next == '\\') {
        escape();
      } else if (is_in_class_) {
        class_character(next);
      } else {
        character(next);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    TESSERA_THROW(
        DataError, "[tokenizer] the pattern ", all_, " has ", what,
        ", which is not supported; accepted: literals, classes, \\p{..}, \\s \\S \\d \\w, groups (?: (?i: (?= (?! (?<= "
        "(?<! (?>, quantifiers");
  }

  void take(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  void replace(size_t count, std::string_view with) {
    out_ += with;
    rest_.remove_prefix(count);
  }

  void escape() {
    const char kind = rest_.size() > 1 ? rest_[1] : '\0';
    switch (kind) {
      case 's': return set(kSpace, false);
      case 'S': return set(kSpace, true);
      case 'w': return set(kWord, false);
      case 'W': return set(kWord, true);
      case 'd': return replace(2, R"(\p{Nd})");
      case 'p':
      case 'P': return property();
      case 'v': return replace(2, R"(\x0b)");
      case 'u': return code_point();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'x': return take(2);
      default: break;
    }
    if (kind == '\0' || std::isalnum(static_cast<unsigned char>(kind))) {
      refuse(std::string("\\") + (kind == '\0' ? "" : std::string(1, kind)));
    }
    take(2);
  }

  void set(std::string_view members, bool is_negated) {
    if (is_in_class_ && is_negated) {
      refuse(std::string(rest_.substr(0, 2)) + " inside [...]");
    }
    replace(2, is_in_class_ ? std::string(members) : (is_negated ? "[^" : "[") + std::string(members) + "]");
  }

  // A bare script name means "script extensions" to PCRE2, "script" to Oniguruma.
  void property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || end == std::string_view::npos) {
      refuse(std::string(rest_.substr(0, 2)) + " without {..}");
    }
    const auto name = rest_.substr(3, end - 3);
    const auto bare = name.substr(name.starts_with('^') ? 1 : 0);
    if (bare.size() <= 2 || bare == "Alphabetic") {
      return take(end + 1);
    }
    const bool is_positive = (rest_[1] == 'p') == (bare.size() == name.size());
    replace(end + 1, (is_positive ? "\\p{sc:" : "\\P{sc:") + std::string(bare) + "}");
  }

  void code_point() {
    const auto digits = rest_.substr(2, 4);
    if (digits.size() != 4 ||
        !std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c); })) {
      refuse("\\u without four digits");
    }
    replace(6, "\\x{" + std::string(digits) + "}");
  }

  void class_character(char next) {
    if (next == '[' || rest_.starts_with("&&")) {
      refuse(next == '[' ? "[ inside [...]" : "&& inside [...]");
    }
    is_in_class_ = next != ']';
    take(1);
  }

  void character(char next) {
    if (next == '^' || next == '$') {
      refuse(std::string("the anchor ") + next);
    }
    if (next == '(' && rest_.substr(1).starts_with("?")) {
      const auto group = std::find_if(std::begin(kGroups), std::end(kGroups),
                                      [&](std::string_view each) { return rest_.substr(1).starts_with(each); });
      return group == std::end(kGroups) ? refuse("the group " + std::string(rest_.substr(0, 4)))
                                        : take(1 + group->size());
    }
    if (rest_.starts_with("}+")) {
      refuse("a quantifier {n,m} followed by +");
    }
    if (next == '[') {
      is_in_class_ = true;
      return take(rest_.starts_with("[^]") ? 3 : rest_.starts_with("[^") || rest_.starts_with("[]") ? 2 : 1);
    }
    take(1);
  }

  std::string_view all_, rest_;
  std::string out_;
  bool is_in_class_ = false;
};

}  // namespace

std::string to_pcre2(std::string_view expression) { return Translator(expression).run(); }

}  // namespace tessera::data
