#include "tessera/data/jsonl.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {
namespace {

constexpr const char* kAccepted = "; accepted: one JSON object a line, as in {\"text\": \"a document\"}";

std::string text_of_line(std::string_view line, const std::string& where) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    TESSERA_THROW(DataError, "[data] ", where, " is no JSON: ", error.what(), kAccepted);
  }
  TESSERA_CHECK_AS(DataError, object.is_object() && object.contains("text"), "[data] ", where,
                   " has no member \"text\"", kAccepted);
  TESSERA_CHECK_AS(DataError, object["text"].is_string(), "[data] ", where, " has a \"text\" that is ",
                   object["text"].type_name(), kAccepted);
  return object["text"].get<std::string>();
}

}  // namespace

void for_each_document(const MappedFile& file, c10::function_ref<void(std::string_view)> document) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // a byte-order mark
  auto rest = file.text();
  rest.remove_prefix(rest.starts_with(kMark) ? kMark.size() : 0);
  for (int64_t number = 1; !rest.empty(); ++number) {
    const auto end = std::min(rest.find('\n'), rest.size());
    if (const auto line = base::trim(rest.substr(0, end)); !line.empty()) {
      document(text_of_line(line, c10::str("\"", file.path(), "\" line ", number)));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace tessera::data
