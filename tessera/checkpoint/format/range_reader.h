// Reads what a manifest describes, and believes nothing that its checksums do not confirm.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/format/manifest.h"

namespace tessera::checkpoint {

// Reads ranges of a checkpoint's files, block by block: every block that a range touches is checked as a whole. The
// last block is kept, so whoever reads a file from front to back reads and checks each block once. One thread; the
// store and the manifest must outlive it.
class RangeReader {
 public:
  RangeReader(Store& store, std::string folder, const Manifest& manifest)
      : store_(store), folder_(std::move(folder)), manifest_(manifest) {}

  // Bytes [begin, end) of the manifest's file of that index, counted from the start of the file. Throws DataError that
  // names the file, the block, its bytes and the tensors in it: cut short, damaged. `data` may be written to then.
  void read(int64_t file, int64_t begin, int64_t end, void* data);

  // The elements of a box of a tensor, from whatever slices hold them. Throws as read().
  at::Tensor read_box(const TensorTable& tensor, const Box& box);

  // What was read from the store so far.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  void read_block(const FileRecord& file, int64_t block, char* data);
  const std::string& kept_block(int64_t file, int64_t block);
  void read_slice(const TensorTable& tensor, const StoredSlice& slice, const Box& wanted, char* data);

  Store& store_;
  const std::string folder_;
  const Manifest& manifest_;
  int64_t kept_file_ = -1, kept_index_ = -1;
  std::string kept_;
  int64_t bytes_read_ = 0;
};

// The files of a checkpoint that are not made of tensors, but for the index, by name: config.json, a tokenizer. Throws
// as RangeReader::read.
std::vector<std::pair<std::string, std::string>> small_files_of(const Manifest& manifest, RangeReader& reader);

// The names of the tensors of which bytes [begin, end) of a file hold elements, for messages: "a, b[0:4, 8:16]"; at
// most four, then how many more.
std::string tensors_in(const Manifest& manifest, int64_t file, int64_t begin, int64_t end);

}  // namespace tessera::checkpoint
