#include "tessera/catalogue/catalogue_json.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/runs.h"
#include "tessera/base/text.h"

namespace tessera::catalogue {
namespace {

using Json = nlohmann::json;
using layout::Mesh;

std::string mesh_json(const Mesh& mesh) {
  std::string text = "{\"axes\": \"" + mesh.str() + "\"";
  if (mesh == Mesh(mesh.axes())) {
    return text + "}";
  }
  return text + ", \"ranks\": [" + base::join(base::Runs(mesh.ranks()).flat(), ", ") + "]}";
}

std::string entry_json(const Entry& entry, size_t mesh) {
  const layout::SpecData& spec = *entry.spec;
  const std::string dtype(c10::getDtypeNames(spec.dtype).first);
  std::string text = "{\"name\": " + Json(entry.name).dump() + ", \"role\": \"" + name_of(entry.role) +
                     "\", \"dtype\": \"" + dtype + "\", \"sizes\": [" + base::join(spec.sizes, ", ") +
                     "], \"mesh\": " + std::to_string(mesh) + ", \"layout\": \"" +
                     layout::short_str(spec.mesh, spec.placements) + "\"";
  return text + (entry.aliases.empty() ? "}" : ", \"aliases\": " + Json(entry.aliases).dump() + "}");
}

std::string write(const Catalogue& catalogue) {
  std::vector<std::string> meshes, entries, values;
  std::map<const void*, size_t> indices;
  for (const Entry& entry : catalogue.entries()) {
    const Mesh& mesh = entry.spec->mesh;
    const auto [at, is_new] = indices.emplace(mesh.id(), meshes.size());
    if (is_new) {
      meshes.push_back(mesh_json(mesh));
    }
    entries.push_back(entry_json(entry, at->second));
  }
  for (const auto& [name, text] : catalogue.values()) {
    values.push_back(Json(name).dump() + ": " + text);
  }
  const auto lines = [](const std::vector<std::string>& items) {
    return (items.empty() ? "" : "\n") + base::join(items, ",\n");
  };
  return "{\"version\": " + std::to_string(kCatalogueVersion) + ",\n\"meshes\": [" + lines(meshes) +
         "],\n\"entries\": [" + lines(entries) + "],\n\"values\": {" + lines(values) + "}}\n";
}

// Reads a text and knows where it is.
class CatalogueReader {
 public:
  CatalogueReader(std::string_view text, const std::string& source) : source_(source), place_(source) {
    std::vector<std::set<std::string>> keys;
    const auto note = [&](int, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::object_start) {
        keys.emplace_back();
      } else if (event == Json::parse_event_t::object_end) {
        keys.pop_back();
      } else if (event == Json::parse_event_t::key) {
        check(keys.back().insert(parsed.get<std::string>()).second, "the field ", parsed.dump(), " stands twice");
      }
      return true;
    };
    try {
      root_ = Json::parse(text, note);
    } catch (const Json::exception& error) {
      check(false, "is not JSON: ", error.what());
    }
  }

  Catalogue read() {
    verify_fields(root_, {"version", "meshes", "entries", "values"}, {});
    const int64_t version = read_int(root_, "version");
    check(version == kCatalogueVersion, "version ", version, " is not ", kCatalogueVersion,
          version > kCatalogueVersion ? ", which is the newest that this program reads" : "");
    const Json& meshes = read_list(root_, "meshes");
    for (size_t i = 0; i < meshes.size(); ++i) {
      place_ = source_ + ": mesh " + std::to_string(i);
      meshes_.push_back(read_mesh(meshes[i]));
    }
    std::vector<Entry> entries;
    const Json& list = read_list(root_, "entries");
    for (size_t i = 0; i < list.size(); ++i) {
      place_ = source_ + ": entry " + std::to_string(i);
      entries.push_back(read_entry(list[i]));
    }
    place_ = source_;
    check(root_.at("values").is_object(), "\"values\" is no object {...}");
    Values values;
    for (const auto& [name, value] : root_.at("values").items()) {
      values.emplace(name, value.dump());
    }
    return checked("the entries", [&] { return Catalogue(std::move(entries), std::move(values)); });
  }

 private:
  template <typename... Parts>
  void check(bool holds, const Parts&... parts) const {
    TESSERA_CHECK_AS(DataError, holds, "[catalogue] ", place_, ": ", parts...);
  }

  // What `make` returns; what it throws is an error of `field`.
  template <typename Make>
  std::invoke_result_t<Make> checked(const char* field, Make make) const {
    try {
      return make();
    } catch (const DataError&) {
      throw;
    } catch (const c10::Error& error) {
      check(false, field, ": ", error.what_without_backtrace());
      throw;
    }
  }

  void verify_fields(const Json& object, const std::vector<std::string>& needed,
                     const std::vector<std::string>& possible) const {
    check(object.is_object(), "is no object {...}");
    std::vector<std::string> known = needed;
    known.insert(known.end(), possible.begin(), possible.end());
    for (const auto& [key, unused] : object.items()) {
      check(std::find(known.begin(), known.end(), key) != known.end(), "unknown field \"", key, "\"",
            base::did_you_mean(key, known), "; accepted: ", base::join(known, ", "));
    }
    for (const std::string& key : needed) {
      check(object.contains(key), "the field \"", key, "\" is missing");
    }
  }

  int64_t to_int(const Json& value, const char* field) const {
    const bool is_large = value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max();
    check(value.is_number_integer() && !is_large, "\"", field, "\" has ", value.dump(), "; accepted: integers");
    return value.get<int64_t>();
  }

  int64_t read_int(const Json& object, const char* field) const { return to_int(object.at(field), field); }

  const Json& read_list(const Json& object, const char* field) const {
    check(object.at(field).is_array(), "\"", field, "\" is ", object.at(field).dump().substr(0, 80),
          "; accepted: a list [...]");
    return object.at(field);
  }

  std::string read_text(const Json& value, const char* field) const {
    check(value.is_string(), "\"", field, "\" is ", value.dump().substr(0, 80), "; accepted: a text");
    return value.get<std::string>();
  }

  Mesh read_mesh(const Json& from) const {
    verify_fields(from, {"axes"}, {"ranks"});
    const Mesh mesh = checked("\"axes\"", [&] { return Mesh::parse(read_text(from.at("axes"), "axes")); });
    if (!from.contains("ranks")) {
      return mesh;
    }
    std::vector<int64_t> flat, ranks;
    for (const Json& item : read_list(from, "ranks")) {
      flat.push_back(to_int(item, "ranks"));
    }
    const base::Runs runs = checked("\"ranks\"", [&] { return base::Runs::from_flat(flat); });
    check(runs.size() == mesh.size(), "\"ranks\" are not the ", mesh.size(), " of ", mesh.str());
    for (int64_t i = 0; i < runs.size(); ++i) {
      ranks.push_back(runs.at(i));
    }
    return checked("\"ranks\"", [&] { return Mesh(mesh.axes(), std::move(ranks)); });
  }

  Entry read_entry(const Json& from) {
    static const std::vector<std::string> kNeeded = {"name", "role", "dtype", "sizes", "mesh", "layout"};
    verify_fields(from, kNeeded, {"aliases"});
    Entry entry;
    entry.name = read_text(from.at("name"), "name");
    place_ += " (" + entry.name + ")";
    const std::string role = read_text(from.at("role"), "role");
    const auto found = try_parse_role(role);
    check(found.has_value(), "\"role\" is \"", role, "\"; accepted: parameter, buffer, moment, other");
    entry.role = *found;
    for (const Json& alias : from.contains("aliases") ? read_list(from, "aliases") : Json::array()) {
      entry.aliases.push_back(read_text(alias, "aliases"));
    }
    entry.spec = read_spec(from);
    return entry;
  }

  layout::Spec read_spec(const Json& from) const {
    const std::string name = read_text(from.at("dtype"), "dtype");
    const auto& dtypes = c10::getStringToDtypeMap();
    const auto dtype = dtypes.find(name);
    check(dtype != dtypes.end() && c10::getDtypeNames(dtype->second).first == name, "\"dtype\" is \"", name,
          "\"; accepted: float32, bfloat16, int64 and the like");
    const int64_t mesh = read_int(from, "mesh");
    check(mesh >= 0 && mesh < static_cast<int64_t>(meshes_.size()), "\"mesh\" is ", mesh, " of ", meshes_.size());
    std::vector<int64_t> sizes;
    auto most = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(c10::elementSize(dtype->second));
    for (const Json& item : read_list(from, "sizes")) {
      sizes.push_back(to_int(item, "sizes"));
      check(sizes.back() >= 0 && sizes.back() <= most, "\"sizes\" are ", from.at("sizes").dump());
      most /= std::max<int64_t>(sizes.back(), 1);
    }
    const std::string text = read_text(from.at("layout"), "layout");
    return checked("\"layout\"", [&] {
      const auto placements = layout::parse_placements(meshes_[mesh], text);
      return layout::Spec::contiguous(meshes_[mesh], placements, sizes, dtype->second);
    });
  }

  std::string source_;
  std::string place_;
  std::vector<Mesh> meshes_;
  Json root_;
};

}  // namespace

std::string to_json(const Catalogue& catalogue) {
  try {
    return write(catalogue);
  } catch (const Json::exception& error) {
    TESSERA_CHECK(false, "[catalogue] a name cannot be written as JSON: ", error.what(), "; accepted: UTF-8");
    throw;
  }
}

Catalogue from_json(std::string_view text, const std::string& source) { return CatalogueReader(text, source).read(); }

}  // namespace tessera::catalogue
