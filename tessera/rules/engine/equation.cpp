#include "tessera/rules/engine/equation.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/base/error.h"

namespace tessera::rules {

namespace {

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// Where each wanted letter stands; empty if they stand so already.
std::vector<int64_t> order_of(const std::string& letters, const std::string& wanted) {
  std::vector<int64_t> order;
  if (letters == wanted) {
    return order;
  }
  for (char letter : wanted) {
    order.push_back(static_cast<int64_t>(letters.find(letter)));
  }
  return order;
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

}  // namespace

Equation::Equation(std::string_view text) {
  const size_t comma = text.find(','), arrow = text.find("->");
  TESSERA_CHECK(comma != std::string_view::npos && arrow != std::string_view::npos && comma < arrow,
                "[contract] malformed equation `", text, "`; accepted: `bsk,jk->bsj`");
  a = text.substr(0, comma);
  b = text.substr(comma + 1, arrow - comma - 1);
  out = text.substr(arrow + 2);
  for (char letter : a + b + out) {
    const bool is_known = std::isalpha(static_cast<unsigned char>(letter)) != 0 &&
                          has(a, letter) + has(b, letter) + has(out, letter) >= 2;
    TESSERA_CHECK(is_known, "[contract] equation `", text, "`: `", letter,
                  "` must be a letter that stands in two of the operands and the result");
  }
  for (char letter : a) {
    std::string& role = !has(b, letter) ? rows : has(out, letter) ? batch : summed;
    role += letter;
  }
  for (char letter : b) {
    if (!has(a, letter)) {
      columns += letter;
    }
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
  if (found != known.end()) {
    return found->second;
  }
  return known.emplace(std::string(text), Equation(text)).first->second;
}

at::Tensor contract(const at::Tensor& a, const at::Tensor& b, std::string_view equation,
                    const std::optional<at::Tensor>& like, const std::optional<at::Tensor>& addend) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::contract", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, c10::string_view,
                                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>();
  return op.call(a, b, equation, like, addend);
}

std::optional<std::string> contraction_of(std::string_view einsum, at::TensorList tensors) {
  std::string text(einsum);
  std::erase(text, ' ');
  const size_t comma = text.find(',');
  if (tensors.size() != 2 || comma == std::string::npos) {
    return std::nullopt;
  }
  const size_t arrow = std::min(text.find("->"), text.size());
  const std::string a = text.substr(0, comma), b = text.substr(comma + 1, arrow - comma - 1);
  const auto count = [](const std::string& letters, char letter) {
    return std::count(letters.begin(), letters.end(), letter);
  };
  std::string out = arrow < text.size() ? text.substr(arrow + 2) : "";
  std::string all = a + b;
  std::sort(all.begin(), all.end());
  if (arrow == text.size()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(out), [&](char letter) { return count(all, letter) == 1; });
  }

  for (char letter : a + b + out) {
    const auto in_a = count(a, letter), in_b = count(b, letter), in_out = count(out, letter);
    const bool fits = std::isalpha(static_cast<unsigned char>(letter)) != 0 && std::max({in_a, in_b, in_out}) == 1 &&
                      in_a + in_b + in_out >= 2;
    if (!fits) {
      return std::nullopt;
    }
  }
  if (static_cast<int64_t>(a.size()) != tensors[0].dim() || static_cast<int64_t>(b.size()) != tensors[1].dim()) {
    return std::nullopt;
  }
  for (size_t d = 0; d < a.size(); ++d) {
    const size_t other = b.find(a[d]);
    if (other != std::string::npos &&
        tensors[0].size(static_cast<int64_t>(d)) != tensors[1].size(static_cast<int64_t>(other))) {
      return std::nullopt;
    }
  }
  return a + "," + b + "->" + out;
}

}  // namespace tessera::rules
