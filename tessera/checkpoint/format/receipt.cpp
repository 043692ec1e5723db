#include "tessera/checkpoint/format/receipt.h"

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/piece_table.h"

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

std::string text_of(const std::vector<FileRecord>& files) {
  const auto write = [](std::ostream& out, const FileRecord& file) { out << json_of(file).dump(); };
  return ",\n\"files\":[\n" + base::join(files, ",\n", write) + "]";
}

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
  return seal(begin_document(kReceiptKind, kReceiptVersion) + text_of(receipt.save) +
              ",\"rank\":" + std::to_string(receipt.rank) + text_of(receipt.files) +
              ",\n\"pieces\":" + to_json(receipt.pieces).dump());
}

Receipt read_receipt(std::string_view text, const std::string& path) {
  Document document(text, path, kReceiptKind, kReceiptVersion);
  Receipt receipt{.save = take_save(document), .rank = document.take<int64_t>("rank"), .files = {}, .pieces = {}};
  receipt.files = take_files(document, receipt.save);
  try {
    receipt.pieces = pieces_from(document.take<json>("pieces"), receipt.files);
  } catch (const DataError&) {
    throw;
  } catch (const std::exception& error) {  // of JSON, or of the columns
    document.fail("has pieces that cannot be read: " + base::message_of(error));
  }
  document.finish();
  return receipt;
}

}  // namespace tessera::checkpoint
