// The JSON at the start of a safetensors file, apart from any file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/checkpoint/metadata.h"

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

// The JSON, padded with spaces to a multiple of 8 bytes.
std::string write_header(const Header& header);

// Reads and verifies a header whose data has `data_size` bytes. `source` names the file in messages. Throws DataError.
Header read_header(std::string_view json, int64_t data_size, const std::string& source);

}  // namespace tessera::checkpoint
