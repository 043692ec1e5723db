// Tensors in a safetensors file, as `safetensors` and `transformers` read and write it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/format/metadata.h"

namespace tessera::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// What a file holds, in the order of its bytes.
struct Tensors {
  std::vector<NamedTensor> tensors;
  Metadata metadata;
};

// Writes a file tensor by tensor: only the one that is written needs to be in memory. By way of a temporary file and a
// rename: an earlier file stays until commit(). Throws DataError on a disk that fails.
class SafetensorsWriter {
 public:
  // `tensors` give names, dtypes and sizes; their values, which may lie anywhere, are not looked at. In the order of
  // write(); wide elements come first where each is to be aligned (in_file_order). Throws c10::Error for a dtype that
  // is not among those of save_safetensors or a name given twice.
  SafetensorsWriter(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The values of the next tensor: whole, plain, on the CPU.
  void write(const at::Tensor& tensor);

  // After the last.
  void commit();

 private:
  class File;
  std::unique_ptr<File> file_;
};

// The order of a file: wide elements first, so that each tensor is aligned to its own; then by name.
std::vector<NamedTensor> in_file_order(std::vector<NamedTensor> tensors);

// Throws c10::Error for a tensor that is not plain and on the CPU; `name` is what the message calls it.
void verify_plain(const std::string& name, const at::Tensor& tensor);

// Writes whole, plain tensors on the CPU of float64, float32, bfloat16, float16, the float8 kinds e4m3fn and e5m2,
// integers of 8 to 64 bits with and without sign, or bool, by way of a temporary file and a rename: an earlier file
// stays until the new one is complete. Tensors that share memory are written twice. Throws DataError on a disk that
// fails, c10::Error for a tensor that is none of these or a name given twice.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

// Reads all tensors. Throws DataError that names the file, the tensor and what is wrong: a short or a longer file, a
// header that is no JSON, unknown dtypes, sizes that do not fit their bytes, bytes that overlap or that no tensor has.
Tensors load_safetensors(const std::string& path);

// Copies each tensor of a file into the one of that name. Throws DataError, having changed nothing, if the names are
// not the same, or a dtype or the sizes differ; it names the first that does.
void load_into(const std::string& path, const std::vector<NamedTensor>& targets);

}  // namespace tessera::checkpoint
