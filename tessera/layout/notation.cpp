// The one notation of layouts: what prints and what reads it.
#include <algorithm>
#include <optional>
#include <ostream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/layout/spec.h"

namespace tessera::layout {

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd, ReduceOp::kAvg};

// Takes `prefix` off the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

// Takes an integer off the front of `text`.
std::optional<int64_t> take_int(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto value = base::try_parse_int(text.substr(0, end));
  text.remove_prefix(end);
  return value;
}

constexpr int64_t kMostParts = 1 << 20;
constexpr int64_t kMostInPart = int64_t{1} << 40;

// Takes `3,0,5` or `2*4,3` off the front of `text`; nothing if it is no list of sizes.
std::optional<Places> take_places(std::string_view& text) {
  std::vector<int64_t> sizes;
  do {
    std::optional<int64_t> size = take_int(text), count = 1;
    if (take(text, "*")) {
      count = std::exchange(size, take_int(text));
    }
    const int64_t left = kMostParts - static_cast<int64_t>(sizes.size());
    if (!size || !count || *size > kMostInPart || *count < 1 || *count > left) {
      return std::nullopt;
    }
    sizes.insert(sizes.end(), static_cast<size_t>(*count), *size);
  } while (take(text, ","));
  return Places::of_sizes(sizes);
}

// `3,0,5`; sizes that follow each other as `2*4,3`.
std::string text_of(const Places& given) {
  const std::vector<int64_t>& sizes = given.sizes();
  std::string text;
  for (auto size = sizes.begin(); size != sizes.end();) {
    const auto next = std::find_if(size, sizes.end(), [&](int64_t other) { return other != *size; });
    text +=
        (text.empty() ? "" : ",") + (next - size > 1 ? std::to_string(next - size) + "*" : "") + std::to_string(*size);
    size = next;
  }
  return text;
}

std::optional<Placement> try_parse_shard(std::string_view text) {
  ShardOptions options;
  std::optional<Places> given;
  const auto first = take_int(text);
  const bool spans = take(text, "-");
  const auto dim = spans ? take_int(text) : first;
  if (take(text, "/")) {
    options.blocks = take_int(text).value_or(0);
  }
  if (take(text, ";")) {
    options.unit = take_int(text).value_or(0);
  } else if (take(text, "|")) {
    given = take_places(text);
    options.unit = given ? 1 : 0;
  }
  if (take(text, "@")) {
    options.order = static_cast<int>(std::min<int64_t>(take_int(text).value_or(-2), 128));
  }
  const bool is_span = !spans || (first == 0 && dim > 0 && options.blocks == 1);
  const bool is_read = first && dim && *dim <= INT32_MAX && is_span && options.unit >= 1 && options.blocks >= 1 &&
                       options.blocks <= 255 && options.order >= -1 && options.order <= 127;
  if (!is_read || text != ")") {
    return std::nullopt;
  }
  const Placement cut = given ? RaggedShard({*dim}, given->sizes(), options) : Shard(*dim, options);
  return spans ? spanning(cut) : cut;
}

std::optional<Placement> try_parse_placement(std::string_view text) {
  if (text == "R") {
    return Replicate();
  }
  if (text == "P") {
    return Partial();
  }
  for (ReduceOp op : kOps) {
    if (text == Partial(op).str() || text == std::string("P(") + name_of(op) + ")") {
      return Partial(op);
    }
  }
  if (take(text, "On(")) {
    const auto coordinate = take_int(text);
    const auto stage = take(text, ";") ? take_int(text) : coordinate;
    const bool is_one = coordinate && *coordinate <= INT32_MAX && stage && *stage <= INT32_MAX && text == ")";
    return is_one ? std::optional(On(*coordinate, *stage)) : std::nullopt;
  }
  return take(text, "S(") ? try_parse_shard(text) : std::nullopt;
}

std::string without_spaces(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c != ' ' && c != '\t') {
      result += c;
    }
  }
  return result;
}

// The items between commas; those in parentheses belong to an item.
std::vector<std::string> split_items(std::string_view text) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

std::vector<std::string> axis_names(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes()) {
    names.push_back(axis.name);
  }
  return names;
}

}  // namespace

std::string Placement::str() const {
  if (is_replicate()) {
    return "R";
  }
  if (is_partial()) {
    return op == ReduceOp::kSum ? "P" : std::string("P(") + name_of(op) + ")";
  }
  if (is_on()) {
    return "On(" + std::to_string(coordinate()) + (stage == dim ? "" : ";" + std::to_string(stage)) + ")";
  }
  std::string text = std::string("S(") + (spans ? "0-" : "") + std::to_string(dim);
  if (blocks != 1) {
    text += "/" + std::to_string(blocks);
  }
  if (is_ragged()) {
    text += "|" + text_of(places);
  } else if (places.unit() != 1) {
    text += ";" + std::to_string(places.unit());
  }
  if (order >= 0) {
    text += "@" + std::to_string(order);
  }
  return text + ")";
}

Placement parse_placement(std::string_view text) {
  const auto placement = try_parse_placement(without_spaces(text));
  TESSERA_CHECK_AS(ConfigError, placement, "[layout] \"", text,
                   "\" is no placement; accepted: R, S(dim), S(dim;unit), S(dim@order), S(dim;unit@order), "
                   "S(dim/blocks;unit), S(dim|size,size,...), S(0-dim|size,size,...), P, P(sum), P(max), "
                   "P(min), P(prod), P(avg), On(coordinate), On(coordinate;stage)");
  return *placement;
}

std::string str(const Mesh& mesh, const Placements& placements) {
  std::string text = "{";
  for (size_t i = 0; i < placements.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += (static_cast<int64_t>(i) < mesh.ndim() ? mesh.axes()[i].name : "?") + ": " + placements[i].str();
  }
  return text + "}";
}

std::string short_str(const Mesh& mesh, const Placements& placements) {
  std::string text;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_replicate()) {
      text += (text.empty() ? "" : ", ") + mesh.axis(static_cast<int64_t>(i)).name + ": " + placements[i].str();
    }
  }
  return "{" + text + "}";
}

Placements parse_placements(const Mesh& mesh, std::string_view text) {
  constexpr const char* kForm = "; accepted: {dp: S(0), tp: R}, axes that are not named being R";
  std::string_view inner = base::trim(text);
  TESSERA_CHECK_AS(ConfigError, inner.size() >= 2 && inner.front() == '{' && inner.back() == '}', "[layout] \"", text,
                   "\" is no list of placements", kForm);
  inner = inner.substr(1, inner.size() - 2);
  Placements result(mesh.ndim());
  std::vector<bool> is_named(mesh.ndim());
  for (const std::string& item : base::trim(inner).empty() ? std::vector<std::string>{} : split_items(inner)) {
    const size_t colon = item.find(':');
    TESSERA_CHECK_AS(ConfigError, colon != std::string::npos, "[layout] \"", item, "\" in \"", text,
                     "\" has no `axis:`", kForm);
    const std::string name(base::trim(std::string_view(item).substr(0, colon)));
    const auto axis = mesh.find_axis(name);
    TESSERA_CHECK_AS(ConfigError, axis, "[layout] no axis \"", name, "\" in mesh {", mesh.str(), "}, named by \"", text,
                     "\"", base::did_you_mean(name, axis_names(mesh)));
    TESSERA_CHECK_AS(ConfigError, !is_named[*axis], "[layout] axis ", name, " is named twice in \"", text, "\"");
    is_named[*axis] = true;
    result[*axis] = parse_placement(std::string_view(item).substr(colon + 1));
  }
  return result;
}

std::string Mesh::str() const {
  if (axes().empty()) {
    return "1";
  }
  return base::join(axes(), ",", [](std::ostream& out, const Axis& axis) { out << axis.name << '=' << axis.size; });
}

Mesh Mesh::parse(std::string_view text) {
  constexpr const char* kForm = "; accepted: dp=2,tp=4 (distinct names, sizes of at least 1), or 1 for the mesh of one";
  if (base::trim(text) == "1") {
    return Mesh();
  }
  std::vector<Axis> axes;
  for (const std::string& item : base::split(text, ',')) {
    const size_t equals = item.find('=');
    const auto size = equals == std::string::npos
                          ? std::nullopt
                          : base::try_parse_int(base::trim(std::string_view(item).substr(equals + 1)));
    TESSERA_CHECK_AS(ConfigError, size && *size >= 1, "[mesh] \"", text, "\" is no mesh",
                     item == text ? "" : ": \"" + item + "\"", kForm);
    axes.push_back({std::string(base::trim(std::string_view(item).substr(0, equals))), *size});
  }
  return Mesh(std::move(axes));
}

std::string Spec::layout_str() const { return layout::str(data_->mesh, data_->placements); }

std::string Spec::str() const {
  if (data_ == nullptr) {
    return "no spec";
  }
  std::string text =
      std::string(c10::getDtypeNames(data_->dtype).first) + "[" + base::join(data_->sizes, ", ") + "] " + layout_str();
  return data_->labels.empty() ? text : text + " " + layout::str(data_->labels);
}

std::ostream& operator<<(std::ostream& out, const Spec& spec) { return out << spec.str(); }

}  // namespace tessera::layout
