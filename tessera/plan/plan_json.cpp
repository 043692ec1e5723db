#include <algorithm>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/base/text.h"
#include "tessera/layout/axis_role.h"
#include "tessera/plan/dtypes.h"
#include "tessera/plan/plan.h"
#include "tessera/schedule/families/family.h"

namespace tessera::plan {
namespace {

using Json = nlohmann::json;

std::string quoted(const std::string& text) { return Json(text).dump(); }

// Without the axes that are replicated, so that an axis more in the mesh leaves most lines as they are.
std::string placements_json(const layout::Mesh& mesh, const layout::Placements& placements) {
  return quoted(layout::short_str(mesh, placements));
}

// What an entry may have beside its pattern and storage, in the order in which it is written.
struct OptionalKey {
  const char* name;
  std::optional<layout::Placements> ParameterPlan::* placements;
};
constexpr OptionalKey kOptionalKeys[] = {{"compute", &ParameterPlan::compute},
                                         {"kept", &ParameterPlan::kept},
                                         {"gradient", &ParameterPlan::gradient},
                                         {"input", &ParameterPlan::input},
                                         {"output", &ParameterPlan::output}};

struct DtypeKey {
  const char* name;
  std::optional<at::ScalarType> ParameterPlan::* dtype;
};
constexpr DtypeKey kDtypeKeys[] = {{"storage_dtype", &ParameterPlan::storage_dtype},
                                   {"compute_dtype", &ParameterPlan::compute_dtype},
                                   {"reduce_dtype", &ParameterPlan::reduce_dtype}};

std::string entry_json(const layout::Mesh& mesh, const ParameterPlan& entry) {
  std::string text =
      "{\"pattern\": " + quoted(entry.pattern) + ", \"storage\": " + placements_json(mesh, entry.storage);
  for (const OptionalKey& key : kOptionalKeys) {
    if (const auto& placements = entry.*key.placements) {
      text += ", \"" + std::string(key.name) + "\": " + placements_json(mesh, *placements);
    }
  }
  if (!entry.group.empty()) {
    text += ", \"group\": " + quoted(entry.group);
  }
  for (const DtypeKey& key : kDtypeKeys) {
    if (const auto& dtype = entry.*key.dtype) {
      text += ", \"" + std::string(key.name) + "\": " + quoted(name_of(*dtype));
    }
  }
  return text + "}";
}

// `"name": [` one item a line `]`.
template <typename Items, typename Write>
std::string lines(const char* name, const Items& items, Write write) {
  std::string text = std::string("  \"") + name + "\": [";
  for (size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "\n    " : ",\n    ") + write(items[i]);
  }
  return text + (items.empty() ? "]" : "\n  ]");
}

bool is_in_order(const std::vector<int64_t>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != static_cast<int64_t>(i)) {
      return false;
    }
  }
  return true;
}

// Reads a text and remembers on which line each member and each parameter entry ends.
class Reader {
 public:
  explicit Reader(std::string_view text) {
    const auto note = [this](int depth, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::key && depth == 1) {
        key_ = parsed.get<std::string>();
        key_lines_[key_] = line_;
      } else if (event == Json::parse_event_t::object_end && depth == 2 && key_ == "parameters") {
        entry_lines_.push_back(line_);
      }
      return true;
    };
    try {
      root_ = Json::parse(Counting{text.data(), &line_}, Counting{text.data() + text.size(), &line_}, note);
    } catch (const Json::exception& error) {
      TESSERA_THROW(PlanError, "[plan] line ", line_, " is not JSON: ", error.what(), "; accepted: what ",
                    base::in_language("Plan::json()", "Plan.json()"), " writes");
    }
  }

  Plan read() {
    static const std::vector<std::string> kKeys = {"version",
                                                   "mesh",
                                                   "ranks",
                                                   "batch_axes",
                                                   "parameters",
                                                   "recompute",
                                                   "recompute_keep",
                                                   "offload",
                                                   "schedule",
                                                   "stages_per_rank",
                                                   "vocabulary",
                                                   "always_walked",
                                                   "keep_gathered_bytes",
                                                   "notes"};
    check(root_.is_object(), 1, "the plan is no object {...}");
    for (const auto& [key, unused] : root_.items()) {
      check_key(key, kKeys, key_lines_[key]);
    }
    const auto version = get<int64_t>(root_, "version", line_of("version"));
    check(version >= 1 && version <= Plan::kVersion, line_of("version"), "version ", version, " is none of 1 to ",
          Plan::kVersion, version > Plan::kVersion ? ", which is the newest that this program reads" : "");
    Plan plan;
    plan.mesh = read_mesh();
    plan.batch_axes = get<std::vector<std::string>>(root_, "batch_axes", line_of("batch_axes"));
    plan.keep_gathered_bytes = get<int64_t>(root_, "keep_gathered_bytes", line_of("keep_gathered_bytes"));
    plan.notes = texts("notes");
    plan.recompute = texts("recompute");
    plan.recompute_keep = texts("recompute_keep");
    plan.offload = texts("offload");
    plan.always_walked = texts("always_walked");
    read_schedule(plan);
    const auto entries = get<std::vector<Json>>(root_, "parameters", line_of("parameters"));
    for (size_t i = 0; i < entries.size(); ++i) {
      plan.parameters.push_back(read_entry(plan.mesh, entries[i], i < entry_lines_.size() ? entry_lines_[i] : 0));
    }
    return plan;
  }

 private:
  // Characters that count the line ends passed.
  struct Counting {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;
    const char* at;
    int64_t* line;
    const char& operator*() const { return *at; }
    Counting& operator++() {
      *line += *at == '\n';
      ++at;
      return *this;
    }
    bool operator==(const Counting& other) const { return at == other.at; }
    bool operator!=(const Counting& other) const { return at != other.at; }
  };

  template <typename... Parts>
  static void check(bool holds, int64_t line, const Parts&... parts) {
    TESSERA_CHECK_AS(PlanError, holds, "[plan] line ", line, ": ", parts...);
  }

  static void check_key(const std::string& key, const std::vector<std::string>& known, int64_t line) {
    check(std::find(known.begin(), known.end(), key) != known.end(), line, "unknown key \"", key, "\"",
          base::did_you_mean(key, known), " accepted: ", base::join(known, ", "));
  }

  template <typename T>
  static T get(const Json& from, const char* key, int64_t line) {
    check(from.contains(key), line, "\"", key, "\" is missing");
    try {
      return from.at(key).get<T>();
    } catch (const Json::exception&) {
      check(false, line, "\"", key, "\" cannot be ", from.at(key).dump());
      throw;
    }
  }

  int64_t line_of(const std::string& key) const {
    const auto found = key_lines_.find(key);
    return found == key_lines_.end() ? line_ : found->second;
  }

  // A list that may be left out.
  std::vector<std::string> texts(const char* key) const {
    return root_.contains(key) ? get<std::vector<std::string>>(root_, key, line_of(key)) : std::vector<std::string>();
  }

  void read_schedule(Plan& plan) const {
    if (!root_.contains("schedule")) {
      return;
    }
    plan.schedule = get<std::string>(root_, "schedule", line_of("schedule"));
    plan.stages_per_rank = get<int64_t>(root_, "stages_per_rank", line_of("stages_per_rank"));
    try {
      schedule::family_of(plan.schedule);
    } catch (const c10::Error& error) {
      check(false, line_of("schedule"), error.what_without_backtrace());
    }
    check(plan.stages_per_rank >= 1, line_of("stages_per_rank"), plan.stages_per_rank,
          " stages on each rank; accepted: at least 1");
    if (root_.contains("vocabulary")) {
      plan.vocabulary = get<int64_t>(root_, "vocabulary", line_of("vocabulary"));
      check(plan.vocabulary >= 0 && plan.vocabulary <= 2, line_of("vocabulary"), plan.vocabulary,
            " barriers of the vocabulary; accepted: 0 to 2");
    }
  }

  layout::Mesh read_mesh() {
    const auto text = get<std::string>(root_, "mesh", line_of("mesh"));
    std::optional<std::vector<int64_t>> ranks;
    if (root_.contains("ranks")) {
      ranks = get<std::vector<int64_t>>(root_, "ranks", line_of("ranks"));
    }
    try {
      const auto mesh = layout::Mesh::parse(text);
      layout::verify_roles(mesh);
      return ranks ? layout::Mesh(mesh.axes(), std::move(*ranks)) : mesh;
    } catch (const c10::Error& error) {
      check(false, line_of("mesh"), error.what_without_backtrace());
      throw;
    }
  }

  static layout::Placements read_placements(const layout::Mesh& mesh, const Json& from, const char* key, int64_t line) {
    const auto text = get<std::string>(from, key, line);
    try {
      return layout::parse_placements(mesh, text);
    } catch (const c10::Error& error) {
      check(false, line, "\"", key, "\": ", error.what_without_backtrace());
      throw;
    }
  }

  static ParameterPlan read_entry(const layout::Mesh& mesh, const Json& from, int64_t line) {
    std::vector<std::string> keys = {"pattern", "storage", "group"};
    for (const OptionalKey& key : kOptionalKeys) {
      keys.emplace_back(key.name);
    }
    for (const DtypeKey& key : kDtypeKeys) {
      keys.emplace_back(key.name);
    }
    check(from.is_object(), line, "an entry of \"parameters\" is no object {\"pattern\": ..., \"storage\": ...}");
    for (const auto& [key, unused] : from.items()) {
      check_key(key, keys, line);
    }
    ParameterPlan entry{get<std::string>(from, "pattern", line), read_placements(mesh, from, "storage", line), {}, {}};
    for (const OptionalKey& key : kOptionalKeys) {
      if (from.contains(key.name)) {
        entry.*key.placements = read_placements(mesh, from, key.name, line);
      }
    }
    entry.group = from.contains("group") ? get<std::string>(from, "group", line) : "";
    for (const DtypeKey& key : kDtypeKeys) {
      if (from.contains(key.name)) {
        const auto text = get<std::string>(from, key.name, line);
        const auto dtype = try_parse_dtype(text);
        check(dtype.has_value(), line, "\"", key.name, "\" is \"", text, "\"; accepted: ", accepted_dtypes());
        entry.*key.dtype = dtype;
      }
    }
    return entry;
  }

  int64_t line_ = 1;
  std::string key_;
  std::map<std::string, int64_t> key_lines_;
  std::vector<int64_t> entry_lines_;
  Json root_;
};

}  // namespace

std::string Plan::json() const {
  std::string text = "{\n  \"version\": " + std::to_string(kVersion) + ",\n  \"mesh\": " + quoted(mesh.str()) + ",\n";
  if (!is_in_order(mesh.ranks())) {
    text += "  \"ranks\": " + Json(mesh.ranks()).dump() + ",\n";
  }
  text += "  \"batch_axes\": " + Json(batch_axes).dump() + ",\n";
  for (const auto& [key, names] : {std::pair("recompute", &recompute), std::pair("recompute_keep", &recompute_keep),
                                   std::pair("offload", &offload), std::pair("always_walked", &always_walked)}) {
    if (!names->empty()) {
      text += "  " + quoted(key) + ": " + Json(*names).dump() + ",\n";
    }
  }
  if (!schedule.empty()) {
    text +=
        "  \"schedule\": " + quoted(schedule) + ",\n  \"stages_per_rank\": " + std::to_string(stages_per_rank) + ",\n";
  }
  if (vocabulary > 0) {
    text += "  \"vocabulary\": " + std::to_string(vocabulary) + ",\n";
  }
  text += "  \"keep_gathered_bytes\": " + std::to_string(keep_gathered_bytes) + ",\n";
  text +=
      lines("parameters", parameters, [this](const ParameterPlan& entry) { return entry_json(mesh, entry); }) + ",\n";
  return text + lines("notes", notes, quoted) + "\n}\n";
}

Plan Plan::from_json(std::string_view text) { return Reader(text).read(); }

}  // namespace tessera::plan
