#include "tessera/checkpoint/format/tensor_table.h"

#include <algorithm>
#include <utility>

namespace tessera::checkpoint {
namespace {

// The cell of a row-major grid as its index along each dim.
std::vector<int64_t> along_dims(int64_t cell, const std::vector<Runs>& cuts) {
  std::vector<int64_t> index(cuts.size());
  for (size_t d = cuts.size(); d-- > 0;) {
    index[d] = cell % (cuts[d].size() - 1);
    cell /= cuts[d].size() - 1;
  }
  return index;
}

Box box_of_cell(const std::vector<int64_t>& index, const std::vector<Runs>& cuts) {
  Box box;
  for (size_t d = 0; d < cuts.size(); ++d) {
    box.push_back({cuts[d].at(index[d]), cuts[d].at(index[d] + 1)});
  }
  return box;
}

// Where the boxes begin along a dim, each once, then the dim's size. `corners` are those of all boxes.
Runs cuts_of(const std::vector<int64_t>& corners, size_t dims, size_t dim, int64_t size) {
  std::vector<int64_t> begins{0};
  for (size_t at = 2 * dim; at < corners.size(); at += 2 * dims) {
    begins.push_back(corners[at]);
    begins.push_back(corners[at + 1]);
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  std::erase_if(begins, [&](int64_t begin) { return begin >= size && begin > 0; });
  begins.push_back(size);
  return Runs(begins);
}

}  // namespace

StoredSlice TensorTable::slice(int64_t cell) const {
  return {box_of_cell(along_dims(cell, cuts), cuts), files.at(cell), begins.at(cell)};
}

int64_t TensorTable::bytes_of(const Box& box) const {
  return reshard::numel(box) * static_cast<int64_t>(at::elementSize(dtype));
}

void TensorTable::for_each_slice(const Box& wanted, const std::function<void(const StoredSlice&)>& visit) const {
  TESSERA_CHECK(wanted.size() == cuts.size(), "[checkpoint] a box of ", wanted.size(), " dims of ", name, " of sizes ",
                at::IntArrayRef(sizes));
  std::vector<int64_t> first, end;
  for (size_t d = 0; d < cuts.size(); ++d) {
    if (wanted[d].size() <= 0 || wanted[d].begin < 0 || wanted[d].end > sizes[d]) {
      return;
    }
    first.push_back(cuts[d].last_at_most(wanted[d].begin));
    end.push_back(cuts[d].last_at_most(wanted[d].end - 1) + 1);
  }
  for (auto index = first;;) {
    int64_t cell = 0;
    for (size_t d = 0; d < cuts.size(); ++d) {
      cell = cell * (cuts[d].size() - 1) + index[d];
    }
    visit({box_of_cell(index, cuts), files.at(cell), begins.at(cell)});
    size_t d = cuts.size();
    while (d > 0 && ++index[d - 1] == end[d - 1]) {
      index[d - 1] = first[d - 1];
      --d;
    }
    if (d == 0) {
      return;
    }
  }
}

void TableMaker::add(const PlacedPiece& piece, int64_t file) {
  const bool is_first = files_.empty();
  TESSERA_CHECK_AS(DataError, is_first || (piece.dtype == dtype_ && piece.sizes == sizes_), "[checkpoint] slices of ",
                   piece.name, " disagree: ", dtype_, " ", at::IntArrayRef(sizes_), " and ", piece.dtype, " ",
                   at::IntArrayRef(piece.sizes), "; accepted: slices of one tensor");
  dtype_ = piece.dtype;
  sizes_ = piece.sizes;
  value_hash_ += piece.value_hash;
  if (reshard::numel(piece.box) == 0 && reshard::numel(everything(sizes_)) > 0) {
    return;
  }
  for (const auto& run : piece.box) {
    corners_.push_back(run.begin);
    corners_.push_back(run.end);
  }
  files_.push_back(file);
  begins_.push_back(piece.begin);
}

TensorTable TableMaker::make(const std::string& name) const {
  TensorTable table{.name = name, .dtype = dtype_, .sizes = sizes_, .value_hash = value_hash_};
  const size_t dims = sizes_.size();
  int64_t cells = 1;
  bool is_grid = true;
  for (size_t d = 0; d < dims; ++d) {
    table.cuts.push_back(cuts_of(corners_, dims, d, sizes_[d]));
    is_grid = is_grid && !__builtin_mul_overflow(cells, table.cuts[d].size() - 1, &cells);
  }
  const auto count = static_cast<int64_t>(files_.size());
  TESSERA_CHECK_AS(DataError, is_grid && cells <= 64 * (count + 1), "[checkpoint] the ", count, " slices of ", name,
                   " are no grid; accepted: slices of a layout, all of them");
  std::vector<int64_t> piece_of(static_cast<size_t>(cells), -1);
  for (int64_t piece = 0; piece < count; ++piece) {
    Box box;
    int64_t cell = 0;
    for (size_t d = 0; d < dims; ++d) {
      const size_t at = 2 * (static_cast<size_t>(piece) * dims + d);
      box.push_back({corners_[at], corners_[at + 1]});
      cell = cell * (table.cuts[d].size() - 1) +
             std::min(table.cuts[d].last_at_most(box[d].begin), table.cuts[d].size() - 2);
    }
    TESSERA_CHECK_AS(DataError, box == box_of_cell(along_dims(cell, table.cuts), table.cuts), "[checkpoint] the slice ",
                     entry_name(name, {}, box), " overlaps others in part; accepted: slices of a layout");
    TESSERA_CHECK_AS(DataError, std::exchange(piece_of[static_cast<size_t>(cell)], piece) < 0,
                     "[checkpoint] the slice ", entry_name(name, {}, box),
                     " is there twice; accepted: one owner for each");
  }
  std::vector<int64_t> files, begins;
  for (int64_t cell = 0; cell < cells; ++cell) {
    const auto piece = piece_of[static_cast<size_t>(cell)];
    TESSERA_CHECK_AS(DataError, piece >= 0, "[checkpoint] the slice ",
                     entry_name(name, {}, box_of_cell(along_dims(cell, table.cuts), table.cuts)),
                     " was written by no rank; accepted: all slices of a tensor");
    files.push_back(files_[static_cast<size_t>(piece)]);
    begins.push_back(begins_[static_cast<size_t>(piece)]);
  }
  table.files = Runs(files);
  table.begins = Runs(begins);
  return table;
}

}  // namespace tessera::checkpoint
