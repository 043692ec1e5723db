// The JSON at the start of a safetensors file, apart from any file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/checkpoint/format/metadata.h"

namespace tessera::checkpoint {

// One tensor: its bytes are data[begin, end) behind the header.
struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  int64_t begin = 0, end = 0;
};

struct Header {
  std::vector<Entry> entries;  // in the order of their bytes
  Metadata metadata;
};

// The largest header that is read or written, as in the reference implementation.
constexpr int64_t kLargestHeader = 100'000'000;

// `F32`; throws c10::Error for a dtype that such files are not written with here.
std::string name_of_dtype(at::ScalarType dtype);

// The dtype of that name, or nothing.
std::optional<at::ScalarType> try_dtype_of(std::string_view name);

// Bytes of a tensor, or nothing if they are more than an int64 counts or a size is negative.
std::optional<int64_t> byte_count(const std::vector<int64_t>& sizes, at::ScalarType dtype);

// The header of a file that holds these entries in this order, one behind the other; their `begin` and `end` are not
// read. Throws c10::Error for a name given twice.
Header lay_out(std::vector<Entry> entries, const Metadata& metadata);

// The JSON, padded with spaces to a multiple of 8 bytes. Throws c10::Error if it is longer than kLargestHeader.
std::string write_header(const Header& header);

// Reads and verifies a header whose data has `data_size` bytes. `source` names the file in messages. Throws DataError.
Header read_header(std::string_view json, int64_t data_size, const std::string& source);

}  // namespace tessera::checkpoint
