#include "tessera/checkpoint/format/receipt.h"

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/safetensors_header.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kReceiptKind = "tessera receipt";
constexpr int64_t kReceiptVersion = 1;

json json_of(const FileRecord& file) { return {file.name, file.size, file.data_begin, base64(file.blocks)}; }

FileRecord file_from(const json& row, const SaveId& save, const Document& document) {
  const auto blocks = try_parse_base64(row.at(3).get<std::string>());
  FileRecord file{.name = row.at(0),
                  .size = row.at(1),
                  .data_begin = row.at(2),
                  .blocks = blocks.value_or(std::vector<uint64_t>())};
  const bool fits = row.size() == 4 && blocks && file.size >= 0 && file.data_begin >= 0 &&
                    file.data_begin <= file.size && file.name.find('/') == std::string::npos && !file.name.empty() &&
                    static_cast<int64_t>(file.blocks.size()) == block_count(file.size, save.block_size);
  if (!fits) {
    document.fail("has a file that cannot be: " + row.dump());
  }
  return file;
}

json json_of(const PlacedPiece& piece) {
  std::vector<int64_t> corners;
  for (const auto& run : piece.box) {
    corners.push_back(run.begin);
    corners.push_back(run.end);
  }
  return {piece.name, name_of_dtype(piece.dtype), piece.sizes, corners, hex(piece.value_hash), piece.file, piece.begin};
}

PlacedPiece piece_from(const json& row, const std::vector<FileRecord>& files, const Document& document) {
  const auto dtype = try_dtype_of(row.at(1).get<std::string>());
  const auto hash = try_parse_hex(row.at(4).get<std::string>());
  const auto corners = row.at(3).get<std::vector<int64_t>>();
  PlacedPiece piece{.name = row.at(0),
                    .dtype = dtype.value_or(at::kFloat),
                    .sizes = row.at(2),
                    .box = {},
                    .value_hash = hash.value_or(0),
                    .file = row.at(5),
                    .begin = row.at(6)};
  bool fits = row.size() == 7 && dtype && hash && corners.size() == 2 * piece.sizes.size() && piece.file >= 0 &&
              piece.file < static_cast<int64_t>(files.size()) && piece.begin >= 0;
  std::vector<int64_t> sizes;
  for (size_t d = 0; fits && d < piece.sizes.size(); ++d) {
    piece.box.push_back({corners[2 * d], corners[2 * d + 1]});
    sizes.push_back(piece.box[d].size());
    fits = 0 <= piece.box[d].begin && sizes[d] >= 0 && piece.box[d].end <= piece.sizes[d];
  }
  const auto bytes = fits ? byte_count(sizes, piece.dtype) : std::nullopt;
  if (!bytes || *bytes > files[static_cast<size_t>(piece.file)].size ||
      piece.begin >
          files[static_cast<size_t>(piece.file)].size - files[static_cast<size_t>(piece.file)].data_begin - *bytes) {
    document.fail("has a tensor that cannot be: " + row.dump());
  }
  return piece;
}

template <typename Range>
std::string rows_of(const Range& items) {
  return "[\n" + base::join(items, ",\n", [](std::ostream& out, const auto& each) { out << json_of(each).dump(); }) +
         "]";
}

}  // namespace

std::string text_of(const SaveId& save) {
  return ",\n\"save_number\":\"" + hex(save.number) + "\",\"step\":" + std::to_string(save.step) +
         ",\"block_size\":" + std::to_string(save.block_size);
}

SaveId take_save(Document& document) {
  const SaveId save{document.take_hex("save_number"), document.take<int64_t>("step"),
                    document.take<int64_t>("block_size")};
  if (save.block_size < 1 || save.step < 0) {
    document.fail("is of step " + std::to_string(save.step) + " with blocks of " + std::to_string(save.block_size) +
                  " bytes");
  }
  return save;
}

std::string text_of(const std::vector<FileRecord>& files) { return ",\n\"files\":" + rows_of(files); }

std::vector<FileRecord> take_files(Document& document, const SaveId& save) {
  std::vector<FileRecord> files;
  const auto rows = document.take<json>("files");
  try {
    for (const auto& row : rows) {
      files.push_back(file_from(row, save, document));
    }
  } catch (const json::exception& error) {
    document.fail(std::string("has files that cannot be read: ") + error.what());
  }
  return files;
}

std::string write_receipt(const Receipt& receipt) {
  return seal(begin_document(kReceiptKind, kReceiptVersion) + text_of(receipt.save) + ",\"rank\":" +
              std::to_string(receipt.rank) + text_of(receipt.files) + ",\n\"pieces\":" + rows_of(receipt.pieces));
}

Receipt read_receipt(std::string_view text, const std::string& path) {
  Document document(text, path, kReceiptKind, kReceiptVersion);
  Receipt receipt{.save = take_save(document), .rank = document.take<int64_t>("rank"), .files = {}, .pieces = {}};
  receipt.files = take_files(document, receipt.save);
  const auto rows = document.take<json>("pieces");
  try {
    for (const auto& row : rows) {
      receipt.pieces.push_back(piece_from(row, receipt.files, document));
    }
  } catch (const json::exception& error) {
    document.fail(std::string("has pieces that cannot be read: ") + error.what());
  }
  document.finish();
  return receipt;
}

}  // namespace tessera::checkpoint
