#include "tessera/checkpoint/format/sealed.h"

#include "tessera/checkpoint/format/block_hashes.h"
#include "tessera/checkpoint/format/numbers.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kSealStart = ",\n\"checksum\":\"";
constexpr std::string_view kSealEnd = "\"}\n";
constexpr size_t kSealSize = kSealStart.size() + 16 + kSealEnd.size();

std::string seal_of(std::string_view open) {
  return std::string(kSealStart) + hex(checksum(open)) + std::string(kSealEnd);
}

std::string_view without_seal(std::string_view text) { return text.substr(0, text.size() - kSealSize); }

}  // namespace

std::string seal(std::string open) {
  open += seal_of(open);
  return open;
}

bool has_seal(std::string_view text) {
  return text.size() > kSealSize && text.ends_with(kSealEnd) &&
         text.substr(text.size() - kSealSize).starts_with(kSealStart);
}

std::string begin_document(const std::string& kind, int64_t version) {
  return "{\"format\":" + nlohmann::json(kind).dump() + ",\"version\":" + std::to_string(version);
}

Document::Document(std::string_view text, std::string path, const std::string& kind, int64_t version)
    : path_(std::move(path)) {
  if (!has_seal(text)) {
    fail("of " + std::to_string(text.size()) + " bytes does not end with its checksum: it is cut short or damaged");
  }
  const auto open = without_seal(text);
  if (text.substr(open.size()) != seal_of(open)) {
    fail("has another checksum than its content: it is damaged");
  }
  try {
    members_ = nlohmann::json::parse(std::string(open) + "}");
  } catch (const nlohmann::json::exception& error) {
    fail(std::string("cannot be read: ") + error.what());
  }
  if (const auto found = take<std::string>("format"); found != kind) {
    fail("is a \"" + found + "\"; expected was a \"" + kind + "\"");
  }
  version_ = take<int64_t>("version");
  if (version_ < 1 || version_ > version) {
    fail("has version " + std::to_string(version_) + ", this program knows versions up to " + std::to_string(version));
  }
}

nlohmann::json Document::take_member(const std::string& name) {
  const auto found = members_.find(name);
  if (found == members_.end()) {
    fail("lacks \"" + name + "\"");
  }
  auto value = std::move(*found);
  members_.erase(found);
  return value;
}

uint64_t Document::take_hex(const std::string& name) {
  const auto text = take<std::string>(name);
  const auto value = try_parse_hex(text);
  if (!value) {
    fail("has the \"" + name + "\" \"" + text + "\", which is no number of 16 digits");
  }
  return *value;
}

void Document::finish() const {
  if (!members_.empty()) {
    fail("has a \"" + members_.begin().key() + "\", which this program does not know");
  }
}

void Document::fail(const std::string& what) const {
  TESSERA_THROW(DataError, "[checkpoint] \"", path_, "\" ", what, "; accepted: a file of a complete checkpoint");
}

}  // namespace tessera::checkpoint
