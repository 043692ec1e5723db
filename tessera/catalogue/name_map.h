// Names and forms of the tensors of other libraries' files, as data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::catalogue {

using Sizes = std::vector<int64_t>;

// One change of a whole tensor's form, which can be undone. A value.
struct Change {
  // Two dims take each other's place; `dim` and `other`.
  // Or `dim` is fused of `factors` dims, slowest first, which are put in `order`: factor `order[i]` becomes number i.
  int64_t dim = 0, other = 0;
  Sizes factors = {};  // empty: a transposition. One may be -1: what the others leave
  Sizes order = {};
  bool operator==(const Change&) const = default;
};

Change transposed(int64_t dim, int64_t other);
// Throws if `order` is not one of as many factors as there are, or more than one of them is -1 or any other below one.
Change reordered(int64_t dim, Sizes factors, Sizes order);

// The change that undoes one.
Change inverse(const Change& change);

// What becomes of sizes and of a tensor (a copy, contiguous, where the form changes). Throws if a dim does not exist or
// its size is not the product of the factors; `name` is for the message.
Sizes changed(const Sizes& sizes, const Change& change, const std::string& name);
at::Tensor changed(const at::Tensor& tensor, const Change& change, const std::string& name);

// A rule: tensors whose name matches `from` are called `to`, and change their form one change after the other.
//
// `{layer}` in a pattern stands for one or more characters that are not `.`; both patterns have the same captures,
// each once.
struct NameRule {
  std::string from;
  std::string to;
  std::vector<Change> changes = {};
};

// Rules in order, the first that matches counts. A value; thread-safe.
//
// Names are taken one to one, so that a map can be undone: `inverse()` of what it gives is what it was given, which is
// looked at whenever a name is mapped.
class NameMap {
 public:
  // What a name becomes.
  struct Mapped {
    std::string name;
    std::vector<Change> changes;
  };

  // Throws if two rules have one `from` or one `to`, or a rule has other captures in one pattern than in the other.
  explicit NameMap(std::vector<NameRule> rules);

  const std::vector<NameRule>& rules() const { return rules_; }

  // Nothing if no rule matches `name`. Throws if the inverse map takes the result to another name.
  std::optional<Mapped> find(std::string_view name) const;

  // Throws DataError, with the pattern that is near, if no rule matches a name, or if two get one name.
  Mapped at(std::string_view name) const;
  std::map<std::string, Sizes> sizes(const std::map<std::string, Sizes>& sizes) const;
  std::map<std::string, at::Tensor> tensors(const std::map<std::string, at::Tensor>& tensors) const;

  NameMap inverse() const;

 private:
  std::optional<Mapped> find_unverified(std::string_view name, bool is_inverse) const;

  std::vector<NameRule> rules_;
};

}  // namespace tessera::catalogue
