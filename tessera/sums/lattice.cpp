#include "tessera/sums/lattice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"

namespace tessera::sums {

namespace {

using layout::Range;

constexpr const char* kForm = "accepted: batch=8,sequence=1,feature=8, each at least 1";

void verify_leaves(int64_t size, int64_t leaves) {
  TESSERA_CHECK(size >= 0 && leaves >= 1, "[exact] ", leaves, " leaves of a dim of ", size,
                ": the size must be 0 or more and the leaves 1 or more");
}

void add_cover(const Node& part, const Node& node, std::vector<Node>& result) {
  if (part.end <= node.begin || node.end <= part.begin) {
    return;
  }
  if (part.begin <= node.begin && node.end <= part.end) {
    result.push_back(node);
    return;
  }
  const int64_t middle = node.begin + left_size(node.size());
  add_cover(part, {node.begin, middle}, result);
  add_cover(part, {middle, node.end}, result);
}

// The numbers of ranks whose even cuts, made without a unit, fall between leaves.
std::string ranks_text(int64_t size, int64_t leaves) {
  std::vector<int64_t> result;
  for (int64_t ranks = 1; ranks <= leaves; ++ranks) {
    const int64_t step = layout::cut(size, ranks, 0).size();
    if (step == size || step % leaf_length(size, leaves) == 0) {
      result.push_back(ranks);
    }
  }
  return base::join(result, ", ");
}

}  // namespace

Lattice Lattice::parse(std::string_view text) {
  Lattice result;
  std::map<std::string, int64_t*, std::less<>> fields = {
      {"batch", &result.batch}, {"sequence", &result.sequence}, {"feature", &result.feature}};
  for (const std::string& item : base::split(text, ',')) {
    const auto parts = base::split(item, '=');
    const auto field = fields.find(base::trim(parts[0]));
    TESSERA_CHECK_AS(ConfigError, field != fields.end() && parts.size() == 2, "[lattice] \"", text,
                     "\": cannot read \"", item, "\" here (or it is there twice); ", kForm);
    const auto value = base::try_parse_int(base::trim(parts[1]));
    TESSERA_CHECK_AS(ConfigError, value && *value >= 1, "[lattice] \"", text, "\": \"", parts[1], "\" leaves; ", kForm);
    *field->second = *value;
    fields.erase(field);
  }
  return result;
}

uint64_t Lattice::hash() const { return base::hash_range(std::array<int64_t, 3>{batch, sequence, feature}); }

std::string Lattice::str() const { return c10::str("batch=", batch, ",sequence=", sequence, ",feature=", feature); }

int64_t leaf_length(int64_t size, int64_t leaves) {
  verify_leaves(size, leaves);
  return size / leaves + (size % leaves != 0);
}

Range leaf_range(int64_t size, int64_t leaves, int64_t index) {
  const int64_t length = leaf_length(size, leaves);
  TESSERA_CHECK(index >= 0 && index < leaves, "[exact] leaf ", index, " of ", leaves);
  return {std::min(index * length, size), std::min((index + 1) * length, size)};
}

int64_t leaf_unit(int64_t size, int64_t leaves) { return std::max<int64_t>(leaf_length(size, leaves), 1); }

std::string Node::str() const { return c10::str("[", begin, ",", end, ")"); }

int64_t left_size(int64_t size) {
  TESSERA_CHECK(size >= 2, "[exact] a tree over ", size, " things has no children");
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size - 1)));
}

int64_t closes_after(int64_t index, int64_t size) {
  const auto bits = static_cast<uint64_t>(index);
  return index + 1 < size ? std::countr_one(bits) : std::popcount(bits);
}

bool is_node_of(const Node& node, const Node& root) {
  Node here = root;
  while (here != node && here.size() > 1) {
    const int64_t middle = here.begin + left_size(here.size());
    here = node.begin < middle ? Node{here.begin, middle} : Node{middle, here.end};
  }
  return here == node;
}

std::vector<Node> cover(const Node& part, int64_t leaves) {
  TESSERA_CHECK(0 <= part.begin && part.begin <= part.end && part.end <= leaves, "[exact] cover of leaves ", part.str(),
                " of ", leaves);
  std::vector<Node> result;
  add_cover(part, {0, leaves}, result);
  return result;
}

Node leaves_of(const Range& held, int64_t size, int64_t leaves) {
  const int64_t unit = leaf_unit(size, leaves);
  return held.size() == 0 ? Node{} : Node{held.begin / unit, (held.end + unit - 1) / unit};
}

bool is_of_whole_leaves(const Range& held, int64_t size, int64_t leaves) {
  const int64_t unit = leaf_unit(size, leaves);
  return held.size() == 0 || (held.begin % unit == 0 && (held.end % unit == 0 || held.end == size));
}

std::string describe_cut(int64_t dim, const Range& held, int64_t size, int64_t leaves) {
  const int64_t unit = leaf_unit(size, leaves), at = held.begin % unit == 0 ? held.end : held.begin, leaf = at / unit;
  return c10::str("dim ", dim, " of ", size, " has ", leaves, leaves == 1 ? " leaf of " : " leaves of ", unit,
                  "; the cut at ", at, " is inside leaf ", leaf, " [", leaf * unit, ",",
                  std::min((leaf + 1) * unit, size), "); accepted: cuts at multiples of ", unit, ", S(", dim, ";", unit,
                  "); even cuts without a unit fit over ", ranks_text(size, leaves), " ranks");
}

}  // namespace tessera::sums
