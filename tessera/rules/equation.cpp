#include "tessera/rules/equation.h"

#include <functional>
#include <unordered_map>

#include "tessera/base/error.h"

namespace tessera::rules {

namespace {

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// Where each wanted letter stands; empty if they stand so already.
std::vector<int64_t> order_of(const std::string& letters, const std::string& wanted) {
  std::vector<int64_t> order;
  if (letters == wanted) return order;
  for (char letter : wanted) order.push_back(static_cast<int64_t>(letters.find(letter)));
  return order;
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

}  // namespace

Equation::Equation(std::string_view text) {
  const size_t comma = text.find(','), arrow = text.find("->");
  TESSERA_CHECK(comma != std::string_view::npos && arrow != std::string_view::npos && comma < arrow, "[contract] malformed equation `",
                text, "`; accepted: `bsk,jk->bsj`");
  a = text.substr(0, comma);
  b = text.substr(comma + 1, arrow - comma - 1);
  out = text.substr(arrow + 2);
  for (char letter : a) {
    std::string& role = !has(b, letter) ? rows : has(out, letter) ? batch : summed;
    role += letter;
  }
  for (char letter : b) {
    if (!has(a, letter)) columns += letter;
  }
  order_a = order_of(a, batch + rows + summed);
  order_b = order_of(b, batch + summed + columns);
  order_out = order_of(batch + rows + columns, out);
  gradient_a = out + "," + b + "->" + a;
  gradient_b = out + "," + a + "->" + b;
}

const Equation& Equation::of(std::string_view text) {
  static thread_local std::unordered_map<std::string, Equation, TextHash, std::equal_to<>> known;
  const auto found = known.find(text);
  if (found != known.end()) return found->second;
  return known.emplace(std::string(text), Equation(text)).first->second;
}

}  // namespace tessera::rules
