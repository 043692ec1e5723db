#include "tessera/checkpoint/offline/summary.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/numbers.h"

namespace tessera::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

Json summary_row(const TensorTable& tensor, const catalogue::Entry& entry) {
  Json row{{"name", tensor.name},
           {"role", catalogue::name_of(entry.role)},
           {"dtype", c10::getDtypeNames(tensor.dtype).first},
           {"sizes", tensor.sizes},
           {"bytes", tensor.bytes_of(everything(tensor.sizes))},
           {"mesh", entry.spec->mesh.str()},
           {"layout", entry.spec.layout_str()},
           {"slices", tensor.slice_count()},
           {"hash", hex(tensor.value_hash)}};
  if (!entry.aliases.empty()) {
    row["aliases"] = entry.aliases;
  }
  return row;
}

// Columns under each other, two spaces between them; the last one is not padded.
std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += "  " + row[i];
      if (i + 1 < row.size()) {
        text.append(widths[i] - row[i].size(), ' ');
      }
    }
    text += "\n";
  }
  return text;
}

std::string sizes_text(const Json& tensor) {
  return tensor["dtype"].get<std::string>() + "[" + base::join(tensor["sizes"].get<std::vector<int64_t>>(), ", ") + "]";
}

}  // namespace

nlohmann::ordered_json summary_of(const OpenCheckpoint& checkpoint) {
  const auto& manifest = checkpoint.manifest;
  int64_t bytes = 0;
  auto files = Json::array(), tensors = Json::array();
  for (const auto& file : manifest.files) {
    bytes += file.size;
    files.push_back({{"name", file.name}, {"bytes", file.size}});
  }
  for (const auto& tensor : manifest.tensors) {
    tensors.push_back(summary_row(tensor, checkpoint.catalogue.at(tensor.name)));
  }
  Json summary{{"folder", checkpoint.folder},
               {"step", manifest.save.step},
               {"save", hex(manifest.save.number)},
               {"ranks", manifest.ranks},
               {"bytes", bytes},
               {"files", std::move(files)},
               {"tensors", std::move(tensors)},
               {"values", Json::object()}};
  for (const auto& [name, value] : checkpoint.catalogue.values()) {
    summary["values"][name] = Json::parse(value);
  }
  return summary;
}

std::string text_of_summary(const nlohmann::ordered_json& summary) {
  std::string text = summary["folder"].get<std::string>() + ": step " + summary["step"].dump() + ", save " +
                     summary["save"].get<std::string>() + " of " + summary["ranks"].dump() + " ranks, " +
                     base::human_bytes(summary["bytes"]) + "\n";
  std::vector<std::vector<std::string>> files, tensors, values;
  for (const auto& file : summary["files"]) {
    files.push_back({file["name"], base::human_bytes(file["bytes"])});
  }
  for (const auto& tensor : summary["tensors"]) {
    const auto slices = tensor["slices"].get<int64_t>();
    tensors.push_back({tensor["name"], tensor["role"], sizes_text(tensor),
                       slices == 1 ? "whole" : std::to_string(slices) + " slices", tensor["hash"],
                       tensor["mesh"].get<std::string>() + " " + tensor["layout"].get<std::string>()});
  }
  for (const auto& [name, value] : summary["values"].items()) {
    values.push_back({name, value.dump()});
  }
  const auto add = [&](const char* title, const auto& rows) {
    text += std::to_string(rows.size()) + " " + title + "\n" + table_of(rows);
  };
  add("files", files);
  add("tensors: role, sizes, how they lie, hash of the value, layout of the job", tensors);
  add("values", values);
  return text;
}

}  // namespace tessera::checkpoint
