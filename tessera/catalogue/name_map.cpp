#include "tessera/catalogue/name_map.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::catalogue {
namespace {

using Captures = std::map<std::string, std::string, std::less<>>;

// The pieces of a pattern: literal texts and, between them, the names of captures: one literal more than captures.
struct Pattern {
  std::vector<std::string> literals;
  std::vector<std::string> captures;
};

Pattern parse_pattern(const std::string& text) {
  constexpr const char* kForm = "; accepted: texts and captures such as {layer}, as in model.layers.{layer}.weight";
  Pattern pattern;
  size_t at = 0;
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', at)) {
    const size_t close = text.find('}', open);
    TESSERA_CHECK(close != std::string::npos && close > open + 1, "[name map] \"", text, "\" has a { without its }",
                  kForm);
    pattern.literals.push_back(text.substr(at, open - at));
    pattern.captures.push_back(text.substr(open + 1, close - open - 1));
    TESSERA_CHECK(pattern.literals.size() == 1 || !pattern.literals.back().empty(), "[name map] \"", text,
                  "\" has two captures side by side", kForm);
    at = close + 1;
  }
  pattern.literals.push_back(text.substr(at));
  return pattern;
}

// Whether `name` from `at` is what pattern has from its literal `level`; fills `captures`.
bool match_from(const Pattern& pattern, std::string_view name, size_t level, Captures& captures) {
  const std::string& literal = pattern.literals[level];
  if (name.substr(0, literal.size()) != literal) {
    return false;
  }
  name.remove_prefix(literal.size());
  if (level == pattern.captures.size()) {
    return name.empty();
  }
  const size_t longest = std::min(name.find('.'), name.size());
  for (size_t length = 1; length <= longest; ++length) {
    if (match_from(pattern, name.substr(length), level + 1, captures)) {
      captures[pattern.captures[level]] = std::string(name.substr(0, length));
      return true;
    }
  }
  return false;
}

std::string fill(const Pattern& pattern, const Captures& captures) {
  std::string text = pattern.literals[0];
  for (size_t i = 0; i < pattern.captures.size(); ++i) {
    text += captures.at(pattern.captures[i]) + pattern.literals[i + 1];
  }
  return text;
}

// The form of a pattern, whatever its captures are called.
std::string form_of(const Pattern& pattern) { return base::join(pattern.literals, "{}"); }

void verify_rule(const NameRule& rule) {
  std::vector<std::string> from = parse_pattern(rule.from).captures, to = parse_pattern(rule.to).captures;
  std::sort(from.begin(), from.end()), std::sort(to.begin(), to.end());
  const bool is_twice = std::adjacent_find(from.begin(), from.end()) != from.end();
  TESSERA_CHECK(from == to && !is_twice, "[name map] ", rule.from, " -> ", rule.to,
                ": the captures differ; accepted: the same on both sides, each once");
}

// The factors of `change` as they are for a dim of this size.
Sizes factors_of(const Sizes& sizes, const Change& change, const std::string& name) {
  Sizes factors = change.factors;
  int64_t known = 1;
  for (int64_t factor : factors) {
    known *= factor == -1 ? 1 : factor;
  }
  const auto open = std::find(factors.begin(), factors.end(), -1);
  if (open != factors.end() && sizes[change.dim] % known == 0) {
    *open = sizes[change.dim] / known;
    known *= *open;
  }
  TESSERA_CHECK_AS(DataError, known == sizes[change.dim], "[name map] dim ", change.dim, " of ", name, " of sizes ",
                   c10::IntArrayRef(sizes), " is not fused of ", c10::IntArrayRef(change.factors));
  return factors;
}

void verify_dims(const Sizes& sizes, const Change& change, const std::string& name) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  TESSERA_CHECK_AS(DataError, std::max(change.dim, change.other) < ndim && std::min(change.dim, change.other) >= 0,
                   "[name map] dims ", change.dim, " and ", change.other, " of ", name, " of sizes ",
                   c10::IntArrayRef(sizes), "; accepted: a tensor of more dims");
}

// The values by their new names, what `change` makes of each.
template <typename Value>
std::map<std::string, Value> mapped(const NameMap& map, const std::map<std::string, Value>& values) {
  std::map<std::string, Value> result;
  std::map<std::string, std::string> sources;
  for (const auto& [name, value] : values) {
    NameMap::Mapped to = map.at(name);
    const auto [source, is_new] = sources.emplace(to.name, name);
    TESSERA_CHECK_AS(DataError, is_new, "[name map] ", source->second, " and ", name, " both become ", to.name);
    Value form = value;
    for (const Change& change : to.changes) {
      form = changed(form, change, name);
    }
    result.emplace(std::move(to.name), std::move(form));
  }
  return result;
}

}  // namespace

Change transposed(int64_t dim, int64_t other) { return {dim, other}; }

Change reordered(int64_t dim, Sizes factors, Sizes order) {
  Sizes sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool is_order = sorted.size() == factors.size() && !factors.empty();
  for (size_t i = 0; i < sorted.size(); ++i) {
    is_order = is_order && sorted[i] == static_cast<int64_t>(i);
  }
  const bool has_faults = std::any_of(factors.begin(), factors.end(), [](int64_t f) { return f < 1 && f != -1; });
  TESSERA_CHECK(is_order && !has_faults && std::count(factors.begin(), factors.end(), -1) <= 1, "[name map] factors ",
                c10::IntArrayRef(factors), " in the order ", c10::IntArrayRef(order),
                "; accepted: each once, counted from 0, at most one of the factors -1");
  return {dim, dim, std::move(factors), std::move(order)};
}

Change inverse(const Change& change) {
  Change result = change;
  for (size_t i = 0; i < change.order.size(); ++i) {
    result.factors[i] = change.factors[change.order[i]];
    result.order[change.order[i]] = static_cast<int64_t>(i);
  }
  return result;
}

Sizes changed(const Sizes& sizes, const Change& change, const std::string& name) {
  verify_dims(sizes, change, name);
  Sizes result = sizes;
  if (change.factors.empty()) {
    std::swap(result[change.dim], result[change.other]);
  } else {
    factors_of(sizes, change, name);
  }
  return result;
}

at::Tensor changed(const at::Tensor& tensor, const Change& change, const std::string& name) {
  const Sizes sizes = tensor.sizes().vec();
  verify_dims(sizes, change, name);
  if (change.factors.empty()) {
    return tensor.transpose(change.dim, change.other).contiguous();
  }
  const Sizes factors = factors_of(sizes, change, name);
  Sizes split(sizes.begin(), sizes.begin() + change.dim);
  split.insert(split.end(), factors.begin(), factors.end());
  split.insert(split.end(), sizes.begin() + change.dim + 1, sizes.end());
  Sizes dims(split.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto factor = static_cast<int64_t>(d) - change.dim;
    const bool is_factor = factor >= 0 && factor < static_cast<int64_t>(factors.size());
    dims[d] = is_factor ? change.dim + change.order[factor] : static_cast<int64_t>(d);
  }
  return tensor.reshape(split).permute(dims).reshape(sizes).contiguous();
}

NameMap::NameMap(std::vector<NameRule> rules) : rules_(std::move(rules)) {
  std::set<std::string> from, to;
  for (const NameRule& rule : rules_) {
    verify_rule(rule);
    TESSERA_CHECK(from.insert(form_of(parse_pattern(rule.from))).second, "[name map] two rules are for ", rule.from);
    TESSERA_CHECK(to.insert(form_of(parse_pattern(rule.to))).second, "[name map] two rules give ", rule.to);
  }
}

std::optional<NameMap::Mapped> NameMap::find_unverified(std::string_view name, bool is_inverse) const {
  for (const NameRule& rule : rules_) {
    Captures captures;
    if (match_from(parse_pattern(is_inverse ? rule.to : rule.from), name, 0, captures)) {
      return Mapped{fill(parse_pattern(is_inverse ? rule.from : rule.to), captures), rule.changes};
    }
  }
  return std::nullopt;
}

std::optional<NameMap::Mapped> NameMap::find(std::string_view name) const {
  auto result = find_unverified(name, false);
  if (result) {
    const auto back = find_unverified(result->name, true);
    TESSERA_CHECK(back && back->name == name && back->changes == result->changes, "[name map] ", name, " becomes ",
                  result->name, ", which is what becomes of ", back ? back->name : "nothing",
                  "; accepted: rules of which one gives each name");
  }
  return result;
}

NameMap::Mapped NameMap::at(std::string_view name) const {
  auto result = find(name);
  if (!result) {
    std::vector<std::string> known;
    for (const NameRule& rule : rules_) {
      known.push_back(rule.from);
    }
    TESSERA_THROW(DataError, "[name map] no rule is for ", name, base::did_you_mean(name, known));
  }
  return *std::move(result);
}

std::map<std::string, Sizes> NameMap::sizes(const std::map<std::string, Sizes>& sizes) const {
  return mapped(*this, sizes);
}

std::map<std::string, at::Tensor> NameMap::tensors(const std::map<std::string, at::Tensor>& tensors) const {
  return mapped(*this, tensors);
}

NameMap NameMap::inverse() const {
  std::vector<NameRule> rules;
  for (const NameRule& rule : rules_) {
    NameRule back{rule.to, rule.from, {}};
    for (auto change = rule.changes.rbegin(); change != rule.changes.rend(); ++change) {
      back.changes.push_back(catalogue::inverse(*change));
    }
    rules.push_back(std::move(back));
  }
  return NameMap(std::move(rules));
}

}  // namespace tessera::catalogue
