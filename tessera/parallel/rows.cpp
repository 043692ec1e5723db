#include "tessera/parallel/rows.h"

#include "tessera/layout/spec.h"

namespace tessera::parallel {

using dtensor::Origin;
using layout::Coord;
using layout::Range;

Rows::Rows(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes, int64_t samples, int64_t micro_batches)
    : mesh_(mesh), placements_(mesh.ndim()), samples_(samples), micro_batches_(micro_batches), origins_(micro_batches) {
  for (const std::string& name : batch_axes) {
    const int64_t axis = mesh.axis_index(name);
    placements_[axis] = layout::Shard(0, {.order = static_cast<int>(axes_.size())});
    axes_.push_back(axis);
  }
}

int64_t Rows::size_of(int64_t index) const { return layout::cut(samples_, micro_batches_, index).size(); }

Range Rows::rows_of(const Coord& coord, int64_t index) const { return layout::local_range(mesh_, placements_, 0, size_of(index), coord); }

Range Rows::samples_of(const Coord& coord, int64_t index) const {
  // The blocks before this one hold, of every micro-batch, the rows before this one's.
  int64_t begin = 0;
  for (int64_t k = 0; k < micro_batches_; ++k) begin += k < index ? rows_of(coord, k).end : rows_of(coord, k).begin;
  return {begin, begin + rows_of(coord, index).size()};
}

const Origin* Rows::origin(int64_t index) {
  const Origin*& origin = origins_.at(index);
  if (origin) return origin;
  std::vector<Origin::Piece> pieces;
  Coord block(mesh_.ndim(), 0);
  for (bool done = false; !done;) {
    const int64_t row = rows_of(block, index).begin, sample = samples_of(block, index).begin;
    const bool is_empty = rows_of(block, index).size() == 0;
    const bool continues = !pieces.empty() && pieces.back().sample - pieces.back().row == sample - row;
    if (!is_empty && !continues) pieces.push_back({row, sample});
    done = true;
    for (size_t i = axes_.size(); i-- > 0 && done;) {
      int64_t& position = block[axes_[i]];
      position = position + 1 == mesh_.axis(axes_[i]).size ? 0 : position + 1;
      done = position == 0;
    }
  }
  return origin = Origin::make(std::move(pieces));
}

}  // namespace tessera::parallel
