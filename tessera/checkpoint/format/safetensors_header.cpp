#include "tessera/checkpoint/format/safetensors_header.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {{"F64", at::kDouble},
                                                              {"F32", at::kFloat},
                                                              {"BF16", at::kBFloat16},
                                                              {"F16", at::kHalf},
                                                              {"F8_E4M3", at::kFloat8_e4m3fn},
                                                              {"F8_E5M2", at::kFloat8_e5m2},
                                                              {"I64", at::kLong},
                                                              {"I32", at::kInt},
                                                              {"I16", at::kShort},
                                                              {"I8", at::kChar},
                                                              {"U64", at::kUInt64},
                                                              {"U32", at::kUInt32},
                                                              {"U16", at::kUInt16},
                                                              {"U8", at::kByte},
                                                              {"BOOL", at::kBool}};

std::string dtype_names() {
  return base::join(kDtypes, ", ", [](std::ostream& out, const auto& each) { out << each.first; });
}

}  // namespace

std::optional<int64_t> byte_count(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(at::elementSize(dtype));
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

namespace {

Entry read_entry(const std::string& name, const json& part, const std::string& source) {
  const auto dtype = part.at("dtype").get<std::string>();
  const auto known = try_dtype_of(dtype);
  TESSERA_CHECK_AS(DataError, known, "[checkpoint] \"", source, "\" has ", name, " of dtype ", dtype,
                   "; accepted: ", dtype_names());
  const auto span = part.at("data_offsets").get<std::array<int64_t, 2>>();
  Entry entry{name, *known, part.at("shape").get<std::vector<int64_t>>(), span[0], span[1]};
  const auto bytes = byte_count(entry.sizes, entry.dtype);
  TESSERA_CHECK_AS(
      DataError, bytes && entry.begin >= 0 && entry.end >= entry.begin && entry.end - entry.begin == *bytes,
      "[checkpoint] \"", source, "\" has ", name, " of dtype ", dtype, " and sizes ", at::IntArrayRef(entry.sizes),
      " in bytes ", entry.begin, " to ", entry.end, "; accepted: as many bytes as its elements have");
  return entry;
}

// Every byte belongs to one tensor.
void verify_cover(const std::vector<Entry>& entries, int64_t data_size, const std::string& source) {
  int64_t at = 0;
  for (const auto& entry : entries) {
    TESSERA_CHECK_AS(DataError, entry.begin == at, "[checkpoint] \"", source, "\": ", entry.name, " begins at byte ",
                     entry.begin, ", the tensor before it ends at ", at, ": they ",
                     entry.begin < at ? "overlap" : "leave a hole",
                     "; accepted: tensors that lie one behind the other");
    at = entry.end;
  }
  TESSERA_CHECK_AS(DataError, at == data_size, "[checkpoint] \"", source, "\" has ", data_size,
                   " bytes of data, its tensors need ", at, ": it is ",
                   data_size < at ? "cut short" : "longer than its header says",
                   "; accepted: a complete safetensors file");
}

}  // namespace

std::string name_of_dtype(at::ScalarType dtype) {
  const auto* known =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& each) { return each.second == dtype; });
  TESSERA_CHECK(known != std::end(kDtypes), "[checkpoint] a tensor of ", dtype,
                " in a safetensors file; accepted: ", dtype_names());
  return known->first;
}

std::optional<at::ScalarType> try_dtype_of(std::string_view name) {
  const auto* known =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& each) { return each.first == name; });
  return known == std::end(kDtypes) ? std::nullopt : std::optional(known->second);
}

Header lay_out(std::vector<Entry> entries, const Metadata& metadata) {
  Header header{.entries = std::move(entries), .metadata = metadata};
  std::set<std::string_view> names;
  int64_t at = 0;
  for (auto& entry : header.entries) {
    TESSERA_CHECK(names.insert(entry.name).second && entry.name != "__metadata__", "[checkpoint] two tensors named \"",
                  entry.name, "\" in one file; accepted: a name for each, not __metadata__");
    const auto bytes = byte_count(entry.sizes, entry.dtype);
    TESSERA_CHECK(bytes, "[checkpoint] ", entry.name, " of sizes ", at::IntArrayRef(entry.sizes),
                  "; accepted: sizes of which an int64 counts the bytes");
    entry.begin = at;
    entry.end = at += *bytes;
  }
  return header;
}

std::string write_header(const Header& header) {
  nlohmann::ordered_json root;
  if (!header.metadata.empty()) {
    root["__metadata__"] = header.metadata;
  }
  for (const auto& entry : header.entries) {
    root[entry.name] = {
        {"dtype", name_of_dtype(entry.dtype)}, {"shape", entry.sizes}, {"data_offsets", {entry.begin, entry.end}}};
  }
  auto text = root.is_null() ? std::string("{}") : root.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  TESSERA_CHECK(static_cast<int64_t>(text.size()) <= kLargestHeader, "[checkpoint] a header of ", text.size(),
                " bytes; accepted: at most ", kLargestHeader);
  return text;
}

Header read_header(std::string_view text, int64_t data_size, const std::string& source) {
  Header header;
  try {
    const auto root = json::parse(text);
    for (const auto& [name, part] : root.items()) {
      if (name == "__metadata__") {
        header.metadata = part.get<Metadata>();
      } else {
        header.entries.push_back(read_entry(name, part, source));
      }
    }
  } catch (const json::exception& error) {
    TESSERA_THROW(DataError, "[checkpoint] the header of \"", source, "\" cannot be read: ", error.what(),
                  "; accepted: a safetensors file");
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  verify_cover(header.entries, data_size, source);
  return header;
}

}  // namespace tessera::checkpoint
