// Where the slices of one tensor lie, in little room.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/base/runs.h"
#include "tessera/checkpoint/format/part.h"

namespace tessera::checkpoint {

using base::Runs;

// A slice of a tensor in a file.
struct StoredSlice {
  Box box;
  int64_t file = 0;   // an index among the manifest's files
  int64_t begin = 0;  // its first byte, behind the file's data_begin
};

// A tensor of a checkpoint. Its slices are a grid: each dim is cut at some indices, and every cell of the grid lies in
// one file. Layouts give no others, because each cuts its dims apart from each other. What is regular takes a few
// numbers (Runs): a tensor in 8,192 slices is found in as many bytes as one in four. A value; thread-safe.
struct TensorTable {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  uint64_t value_hash = 0;  // of the whole value, whatever its layout
  std::vector<Runs> cuts =
      {};           // of each dim: where cells begin, then its size; a dim without elements is one empty cell
  Runs files = {};  // of each cell, in row-major order
  Runs begins = {};

  // Slices, one for each cell.
  int64_t slice_count() const { return files.size(); }
  StoredSlice slice(int64_t cell) const;

  // Whether it lies in one piece.
  bool is_whole() const { return slice_count() == 1; }

  // Calls `visit` for each slice that shares elements with `wanted`, in row-major order, in time of their number and
  // the logarithm of all.
  void for_each_slice(const Box& wanted, const std::function<void(const StoredSlice&)>& visit) const;

  // Bytes of elements in a box.
  int64_t bytes_of(const Box& box) const;

  bool operator==(const TensorTable&) const = default;
};

// Puts together where the slices of a tensor lie. `pieces` are those of one tensor, in any order. Throws DataError that
// names the tensor and the slice: one that is missing or there twice, slices that disagree on dtype or sizes, or that
// are no grid.
class TableMaker {
 public:
  // `file` is the index of the piece's file among all.
  void add(const PlacedPiece& piece, int64_t file);
  TensorTable make(const std::string& name) const;

 private:
  at::ScalarType dtype_ = at::kFloat;
  std::vector<int64_t> sizes_;
  uint64_t value_hash_ = 0;
  std::vector<int64_t> corners_;  // of each piece: begin and end of each dim
  std::vector<int64_t> files_, begins_;
};

}  // namespace tessera::checkpoint
