// A safetensors file that is read tensor by tensor.
#pragma once

#include <fstream>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/format/safetensors_header.h"

namespace tessera::checkpoint {

// Only the header and what is asked for is read. One thread at a time uses it.
class SafetensorsFile {
 public:
  // Reads the header. Throws DataError that names the file and what is wrong with it, as load_safetensors does.
  explicit SafetensorsFile(std::string path);

  // Names, dtypes, sizes.
  const Header& header() const { return header_; }

  // A tensor in memory of its own. Throws DataError where the file ends too early, c10::Error for a name that the
  // header lacks.
  at::Tensor read(const Entry& entry);
  at::Tensor read(const std::string& name);

 private:
  const std::string path_;
  std::ifstream file_;
  Header header_;
  std::streamoff data_ = 0;  // where the tensors' bytes begin
};

}  // namespace tessera::checkpoint
