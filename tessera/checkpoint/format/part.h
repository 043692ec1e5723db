// Parts: the safetensors files of a checkpoint, which hold tensors or slices of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/format/block_hashes.h"
#include "tessera/checkpoint/format/box_runs.h"
#include "tessera/checkpoint/store/store.h"
#include "tessera/reshard/holdings.h"

namespace tessera::checkpoint {

using reshard::Box;

// Which save a file is of.
struct SaveId {
  uint64_t number = 0;  // drawn at random for each save; every file of a save carries it
  int64_t step = 0;
  int64_t block_size = kBlockSize;  // bytes of the blocks that have checksums
  bool operator==(const SaveId&) const = default;
};

// A file of a checkpoint.
struct FileRecord {
  std::string name;                   // in the checkpoint's folder
  int64_t size = 0;                   // bytes
  int64_t data_begin = 0;             // the byte from which places in it count: behind the header of a part; else 0
  std::vector<uint64_t> blocks = {};  // checksums
  bool operator==(const FileRecord&) const = default;
};

// What is to be written of a tensor.
struct Piece {
  std::string name;            // of the tensor, such as `exp_avg/h.0.weight`
  std::vector<int64_t> sizes;  // of the whole tensor
  Box box;                     // the slice; everything() of the sizes for a whole tensor
  at::Tensor value;            // of the slice: plain, on the CPU
  // The slice's share of the hash of the tensor's value; without one it is made of the value when that is written.
  std::optional<uint64_t> value_hash = {};
};

// Where a piece lies.
struct PlacedPiece {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  Box box;
  uint64_t value_hash = 0;  // those of all slices are added
  int64_t file = 0;         // an index among files
  int64_t begin = 0;        // its first byte, behind the file's data_begin; its elements lie in row-major order
  bool operator==(const PlacedPiece&) const = default;
};

struct Part {
  FileRecord file;
  std::vector<PlacedPiece> pieces;  // `file` is 0
};

// The name of an entry: that of the tensor where it is whole; else with the slice in global indices,
// `exp_avg/h.0.weight[0:4, 8:16]`.
std::string entry_name(const std::string& name, c10::IntArrayRef sizes, const Box& box);

// Writes a part: a safetensors file with the save's number in its metadata, as `save_number`. Wide elements come first,
// then names in ascending order. A thread of its own hashes what this one writes. Throws DataError as Store does,
// c10::Error for a value that does not fit its box, is not plain or not of a dtype of save_safetensors.
Part write_part(Store& store, const std::string& folder, const std::string& name, const SaveId& save,
                std::vector<Piece> pieces);

// As write_part, any other file.
FileRecord write_hashed(Store& store, const std::string& folder, const std::string& name, const SaveId& save,
                        std::string_view content);

}  // namespace tessera::checkpoint
