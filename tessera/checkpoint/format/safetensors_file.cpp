#include "tessera/checkpoint/format/safetensors_file.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <utility>

#include <ATen/EmptyTensor.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  std::error_code failed;
  const auto size = std::filesystem::is_regular_file(path_, failed)
                        ? static_cast<int64_t>(std::filesystem::file_size(path_, failed))
                        : -1;
  file_.open(path_, std::ios::binary);
  TESSERA_CHECK_AS(DataError, size >= 0 && file_, "[checkpoint] cannot read \"", path_,
                   "\"; accepted: the path of a safetensors file");
  uint64_t length = 0;
  const bool has_length = size >= 8 && file_.read(reinterpret_cast<char*>(&length), sizeof(length));
  TESSERA_CHECK_AS(DataError, has_length && length <= static_cast<uint64_t>(std::min(size - 8, kLargestHeader)),
                   "[checkpoint] \"", path_, "\" of ", size, " bytes gives its header ", length,
                   " bytes; accepted: a complete safetensors file");
  std::string text(length, '\0');
  file_.read(text.data(), static_cast<std::streamsize>(length));
  data_ = 8 + static_cast<std::streamoff>(length);
  header_ = read_header(text, size - static_cast<int64_t>(data_), path_);
}

at::Tensor SafetensorsFile::read(const Entry& entry) {
  auto tensor = at::Tensor(at::detail::empty_cpu(entry.sizes, entry.dtype));
  file_.seekg(data_ + entry.begin);
  file_.read(static_cast<char*>(tensor.data_ptr()), entry.end - entry.begin);
  TESSERA_CHECK_AS(DataError, file_, "[checkpoint] reading ", entry.name, " of \"", path_,
                   "\" failed; accepted: a complete safetensors file");
  return tensor;
}

at::Tensor SafetensorsFile::read(const std::string& name) {
  const auto& entries = header_.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& each) { return each.name == name; });
  TESSERA_CHECK(entry != entries.end(), "[checkpoint] \"", path_, "\" has no tensor ", name,
                "; accepted: a name of its header");
  return read(*entry);
}

}  // namespace tessera::checkpoint
