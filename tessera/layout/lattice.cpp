#include "tessera/layout/lattice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <ostream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"

namespace tessera::layout {

namespace {

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

// The parts of a merge by where they begin.
class MergePlanner {
 public:
  MergePlanner(const std::vector<Node>& parts, const Node& root) : parts_(parts), root_(root) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool is_new = is_node_of(parts[i], root) && begins_.emplace(parts[i].begin, static_cast<int64_t>(i)).second;
      TESSERA_CHECK(is_new, "[exact] merge over ", root.str(), " of ", names(), ": ", parts[i].str(),
                    is_node_of(parts[i], root) ? " begins where another does" : " is not a node of its tree",
                    "; accepted: nodes of the tree that hold every leaf once, such as ", halves());
    }
  }

  std::vector<Addition> plan() {
    add(root_);
    TESSERA_CHECK(used_ == parts_.size(), "[exact] merge over ", root_.str(), " of ", names(), ": some overlap");
    return std::move(additions_);
  }

 private:
  // The index of the part that holds the sum over `node` once the additions made so far have run.
  int64_t add(const Node& node) {
    const auto found = begins_.find(node.begin);
    if (found != begins_.end() && parts_[found->second] == node) {
      ++used_;
      return found->second;
    }
    TESSERA_CHECK(node.size() > 1, "[exact] merge over ", root_.str(), " of ", names(), ": nobody holds leaf ", node.begin);
    const int64_t middle = node.begin + left_size(node.size());
    const int64_t left = add({node.begin, middle});
    const int64_t right = add({middle, node.end});
    additions_.push_back({left, right, node});
    return left;
  }

  std::string names() const {
    return base::join(parts_, " ", [](std::ostream& out, const Node& part) { out << part.str(); });
  }

  std::string halves() const {
    if (root_.size() < 2) {
      return root_.str();
    }
    const int64_t middle = root_.begin + left_size(root_.size());
    return Node{root_.begin, middle}.str() + " " + Node{middle, root_.end}.str();
  }

  const std::vector<Node>& parts_;
  Node root_;
  std::map<int64_t, int64_t> begins_;
  std::vector<Addition> additions_;
  size_t used_ = 0;
};

// `26,26,26,23`: what ranks hold whose cuts are multiples of `unit`.
std::string sizes_text(int64_t size, int64_t ranks, int64_t unit) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sizes.push_back(cut(size, ranks, rank, unit).size());
  }
  return base::join(sizes, ",");
}

// The numbers of ranks whose even cuts, made without a unit, fall between leaves.
std::string ranks_text(int64_t size, int64_t leaves) {
  std::vector<int64_t> result;
  for (int64_t ranks = 1; ranks <= leaves; ++ranks) {
    const int64_t step = cut(size, ranks, 0).size();
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
    TESSERA_CHECK_AS(ConfigError, field != fields.end() && parts.size() == 2, "[lattice] \"", text, "\": cannot read \"", item,
                     "\" here (or it is there twice); ", kForm);
    const auto value = base::try_parse_int(base::trim(parts[1]));
    TESSERA_CHECK_AS(ConfigError, value && *value >= 1, "[lattice] \"", text, "\": \"", parts[1], "\" leaves; ", kForm);
    *field->second = *value;
    fields.erase(field);
  }
  return result;
}

uint64_t Lattice::hash() const {
  return base::hash_range(std::array<int64_t, 3>{batch, sequence, feature});
}

std::string Lattice::str() const {
  return c10::str("batch=", batch, ",sequence=", sequence, ",feature=", feature);
}

int64_t leaf_length(int64_t size, int64_t leaves) {
  verify_leaves(size, leaves);
  return size / leaves + (size % leaves != 0);
}

Range leaf_range(int64_t size, int64_t leaves, int64_t index) {
  const int64_t length = leaf_length(size, leaves);
  TESSERA_CHECK(index >= 0 && index < leaves, "[exact] leaf ", index, " of ", leaves);
  return {std::min(index * length, size), std::min((index + 1) * length, size)};
}

int64_t leaf_unit(int64_t size, int64_t leaves) {
  return std::max<int64_t>(leaf_length(size, leaves), 1);
}

std::string Node::str() const {
  return c10::str("[", begin, ",", end, ")");
}

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
  TESSERA_CHECK(0 <= part.begin && part.begin <= part.end && part.end <= leaves, "[exact] cover of leaves ", part.str(), " of ",
                leaves);
  std::vector<Node> result;
  add_cover(part, {0, leaves}, result);
  return result;
}

std::vector<Addition> plan_merge(const std::vector<Node>& parts, const Node& root) {
  TESSERA_CHECK(root.size() >= 1, "[exact] merge over ", root.str(), ": it has no leaves");
  return MergePlanner(parts, root).plan();
}

void verify_cuts(int64_t dim, int64_t size, int64_t leaves, const std::vector<int64_t>& parts) {
  const int64_t length = leaf_length(size, leaves), unit = leaf_unit(size, leaves), ranks = static_cast<int64_t>(parts.size());
  const std::string held = base::join(parts, ",");
  int64_t at = 0;
  for (int64_t part : parts) {
    TESSERA_CHECK(part >= 0, "[exact] dim ", dim, " of ", size, ": ", ranks, " ranks hold ", held, "; a size is negative");
    TESSERA_CHECK(at % unit == 0 || at == size, "[exact] dim ", dim, " of ", size, " has ", leaves, " leaves of ", length, "; ", ranks,
                  " ranks hold ", held, "; the cut at ", at, " is inside leaf ", at / unit, " [", at / unit * unit, ",",
                  std::min(at / unit * unit + unit, size), "); accepted: cuts at multiples of ", unit, " (unit ", unit, "): ", ranks,
                  " ranks hold ", sizes_text(size, ranks, unit), "; even cuts without a unit work for ranks: ",
                  ranks_text(size, leaves));
    at += part;
  }
  TESSERA_CHECK(at == size, "[exact] dim ", dim, " of ", size, ": ", ranks, " ranks hold ", held, ", which is ", at, " together");
}

std::vector<Node> leaves_of_parts(int64_t dim, int64_t size, int64_t leaves, const std::vector<int64_t>& parts) {
  verify_cuts(dim, size, leaves, parts);
  TESSERA_CHECK(!parts.empty(), "[exact] dim ", dim, " of ", size, " is held by no rank");
  const int64_t unit = leaf_unit(size, leaves);
  const auto full = std::find_if(parts.rbegin(), parts.rend(), [](int64_t part) { return part > 0; });
  const int64_t last = std::max<int64_t>(parts.rend() - full - 1, 0);
  std::vector<Node> result;
  int64_t at = 0, leaf = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(parts.size()); ++i) {
    at += parts[i];
    const int64_t end = i < last ? at / unit : leaves;
    result.push_back({leaf, end});
    leaf = end;
  }
  return result;
}

}  // namespace tessera::layout
