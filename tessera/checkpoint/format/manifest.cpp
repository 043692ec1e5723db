#include "tessera/checkpoint/format/manifest.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/safetensors_header.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kManifestKind = "tessera manifest";

json row_of(const TensorTable& table) {
  json cuts = json::array();
  for (const auto& runs : table.cuts) {
    cuts.push_back(runs.flat());
  }
  return {table.name,      name_of_dtype(table.dtype), table.sizes,        hex(table.value_hash),
          std::move(cuts), table.files.flat(),         table.begins.flat()};
}

// Whether the cuts fit the sizes, and files and places the cuts.
bool is_sound(const TensorTable& table, size_t files) {
  int64_t cells = 1;
  bool sound = table.cuts.size() == table.sizes.size();
  for (size_t d = 0; sound && d < table.cuts.size(); ++d) {
    const auto& cuts = table.cuts[d];
    const int64_t size = table.sizes[d];
    sound = cuts.size() >= 2 && cuts.at(0) == 0 && cuts.at(cuts.size() - 1) == size &&
            (size == 0 ? cuts.size() == 2 : cuts.ascends()) && !__builtin_mul_overflow(cells, cuts.size() - 1, &cells);
  }
  return sound && byte_count(table.sizes, table.dtype) && table.files.size() == cells && table.begins.size() == cells &&
         table.files.least() >= 0 && table.files.greatest() < static_cast<int64_t>(files) && table.begins.least() >= 0;
}

TensorTable table_from(const json& row, size_t files, const Document& document) {
  const auto dtype = try_dtype_of(row.at(1).get<std::string>());
  const auto hash = try_parse_hex(row.at(3).get<std::string>());
  TensorTable table{
      .name = row.at(0), .dtype = dtype.value_or(at::kFloat), .sizes = row.at(2), .value_hash = hash.value_or(0)};
  const auto runs = [](const json& flat) { return Runs::from_flat(flat.get<std::vector<int64_t>>()); };
  for (const auto& cuts : row.at(4)) {
    table.cuts.push_back(runs(cuts));
  }
  table.files = runs(row.at(5));
  table.begins = runs(row.at(6));
  if (row.size() != 7 || !dtype || !hash || !is_sound(table, files)) {
    document.fail("has a tensor that cannot be: " + row.dump().substr(0, 200));
  }
  return table;
}

bool is_before(const TensorTable& a, const TensorTable& b) { return a.name < b.name; }

}  // namespace

const TensorTable* Manifest::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const TensorTable& table, const std::string& text) { return table.name < text; });
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

int64_t Manifest::file_index(const std::string& name) const {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const FileRecord& file) { return file.name == name; });
  return found == files.end() ? -1 : found - files.begin();
}

std::string write_manifest(const Manifest& manifest) {
  const auto rows =
      base::join(manifest.tensors, ",\n", [](std::ostream& out, const auto& table) { out << row_of(table).dump(); });
  return seal(begin_document(kManifestKind, manifest.version) + text_of(manifest.save) +
              ",\"ranks\":" + std::to_string(manifest.ranks) + ",\n\"catalogue\":" + manifest.catalogue.dump() +
              text_of(manifest.files) + ",\n\"tensors\":[\n" + rows + "]");
}

Manifest read_manifest(std::string_view text, const std::string& path) {
  Document document(text, path, kManifestKind, kManifestVersion);
  Manifest manifest{.version = document.version(),
                    .save = take_save(document),
                    .ranks = document.take<int64_t>("ranks"),
                    .catalogue = {},
                    .files = {},
                    .tensors = {}};
  manifest.catalogue = document.take<json>("catalogue");
  manifest.files = take_files(document, manifest.save);
  const auto rows = document.take<json>("tensors");
  try {
    for (const auto& row : rows) {
      manifest.tensors.push_back(table_from(row, manifest.files.size(), document));
    }
  } catch (const DataError&) {
    throw;
  } catch (const std::exception& error) {  // of JSON, or of Runs
    document.fail("has tensors that cannot be read: " + base::message_of(error));
  }
  if (!std::is_sorted(manifest.tensors.begin(), manifest.tensors.end(), is_before)) {
    document.fail("has tensors in no order");
  }
  document.finish();
  return manifest;
}

void ManifestMaker::add(const Receipt& receipt, const std::string& path) {
  TESSERA_CHECK_AS(DataError, receipt.save == manifest_.save, "[checkpoint] \"", path, "\" is of save ",
                   hex(receipt.save.number), " of step ", receipt.save.step, ", this is save ",
                   hex(manifest_.save.number), " of step ", manifest_.save.step,
                   "; accepted: the receipts of one save");
  const auto [at, is_new] = receipts_.emplace(receipt.rank, path);
  TESSERA_CHECK_AS(DataError, is_new, "[checkpoint] \"", path, "\" is of rank ", receipt.rank, ", as \"", at->second,
                   "\"; accepted: one receipt for each rank");
  const auto first = static_cast<int64_t>(manifest_.files.size());
  for (const auto& file : receipt.files) {
    add(file);
  }
  for (const auto& piece : receipt.pieces) {
    tables_[piece.name].add(piece, first + piece.file);
  }
}

void ManifestMaker::add(const FileRecord& file) {
  const bool is_new = file_at_.emplace(file.name, static_cast<int64_t>(manifest_.files.size())).second;
  TESSERA_CHECK_AS(DataError, is_new, "[checkpoint] two ranks wrote \"", file.name,
                   "\"; accepted: one writer for each file");
  manifest_.files.push_back(file);
}

std::vector<TensorTable> ManifestMaker::tensors() const {
  std::vector<TensorTable> tensors;
  for (const auto& [name, table] : tables_) {
    tensors.push_back(table.make(name));
  }
  return tensors;
}

Manifest ManifestMaker::make(json catalogue) const {
  auto manifest = manifest_;
  manifest.ranks = static_cast<int64_t>(receipts_.size());
  manifest.catalogue = std::move(catalogue);
  manifest.tensors = tensors();
  return manifest;
}

}  // namespace tessera::checkpoint
