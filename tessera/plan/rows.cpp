#include "tessera/plan/rows.h"

#include <algorithm>

#include "tessera/layout/spec.h"

namespace tessera::plan {

using layout::Coord;
using layout::Origin;
using layout::Range;

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Rows::Rows(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes, int64_t samples, int64_t micro_batches,
           int64_t unit, Deal deal)
    : mesh_(mesh), samples_(samples), micro_batches_(micro_batches), unit_(unit), deal_(deal), origins_(micro_batches) {
  for (const std::string& name : batch_axes) {
    axes_.push_back(mesh.axis_index(name));
    blocks_ *= mesh.axis(axes_.back()).size;
  }
  block_size_ = ceil_div(ceil_div(samples, unit), blocks_) * unit;
}

Range Rows::samples_of_pass(int64_t index) const {
  const int64_t step = ceil_div(ceil_div(samples_, unit_), micro_batches_) * unit_;
  return {std::min(index * step, samples_), std::min((index + 1) * step, samples_)};
}

Range Rows::samples_of_block(int64_t block, int64_t index) const {
  const Range whole = {std::min(block * block_size_, samples_), std::min((block + 1) * block_size_, samples_)};
  const int64_t step = ceil_div(block_size_, micro_batches_);
  return {std::min(whole.begin + index * step, whole.end), std::min(whole.begin + (index + 1) * step, whole.end)};
}

int64_t Rows::size_of(int64_t index) const {
  if (deal_ == Deal::kByPass) {
    return samples_of_pass(index).size();
  }
  const int64_t full = block_size_ == 0 ? 0 : samples_ / block_size_;
  return full * most_of(index) + (full < blocks_ ? samples_of_block(full, index).size() : 0);
}

int64_t Rows::filled() const {
  int64_t index = 0;
  while (index < micro_batches_ && size_of(index) > 0) {
    ++index;
  }
  return index;
}

bool Rows::fills_ranks() const {
  Coord last(static_cast<size_t>(mesh_.ndim()), 0);  // nobody has less
  for (int64_t axis : axes_) {
    last[axis] = mesh_.axis(axis).size - 1;
  }
  for (int64_t index = 0; index < micro_batches_; ++index) {
    if (samples_of(last, index).size() == 0) {
      return false;
    }
  }
  return true;
}

layout::Placements Rows::placements(int64_t index) const {
  layout::Placements result(mesh_.ndim());
  if (deal_ == Deal::kByPass) {
    for (size_t i = 0; i < axes_.size(); ++i) {
      result[axes_[i]] = layout::Shard(0, {.unit = unit_, .order = static_cast<int>(i)});
    }
    return result;
  }
  const int64_t size = size_of(index), most = most_of(index);
  const bool is_plain = blocks_ * most == size || (axes_.size() == 1 && ceil_div(size, blocks_) == most);
  int64_t unit = std::max<int64_t>(most, 1);
  for (size_t i = axes_.size(); i-- > 0;) {
    result[axes_[i]] = layout::Shard(0, {.unit = is_plain ? 1 : unit, .order = static_cast<int>(i)});
    unit *= mesh_.axis(axes_[i]).size;
  }
  return result;
}

Range Rows::samples_of(const Coord& coord, int64_t index) const {
  if (deal_ == Deal::kByPass) {
    const Range all = samples_of_pass(index),
                held = layout::local_range(mesh_, placements(index), 0, all.size(), coord);
    return {all.begin + held.begin, all.begin + held.end};
  }
  int64_t block = 0;
  for (int64_t axis : axes_) {
    block = block * mesh_.axis(axis).size + coord[axis];
  }
  return samples_of_block(block, index);
}

const Origin* Rows::origin(int64_t index) {
  const Origin*& origin = origins_.at(index);
  if (origin) {
    return origin;
  }
  if (deal_ == Deal::kByPass) {
    return origin = Origin::make({{0, samples_of_pass(index).begin}});
  }
  std::vector<Origin::Piece> pieces;
  int64_t row = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    const Range held = samples_of_block(block, index);
    const bool continues = !pieces.empty() && pieces.back().sample - pieces.back().row == held.begin - row;
    if (held.size() > 0 && !continues) {
      pieces.push_back({row, held.begin});
    }
    row += held.size();
  }
  return origin = Origin::make(std::move(pieces));
}

Rows deal_rows(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes, int64_t samples,
               int64_t micro_batches, int64_t unit, Deal wanted) {
  Rows rows(mesh, batch_axes, samples, micro_batches, unit, wanted);
  return rows.fills_ranks() ? rows : Rows(mesh, batch_axes, samples, micro_batches, unit);
}

layout::Labels batch_labels(const at::Tensor& tensor, int64_t samples, int64_t total, bool has_positions) {
  layout::Labels labels(static_cast<size_t>(tensor.dim()));
  if (tensor.dim() >= 1) {
    labels[0] = {{.label = layout::Label::kBatch, .extent = samples, .total = total}};
  }
  if (has_positions) {
    labels[1] = {{.label = layout::Label::kSequence, .extent = tensor.size(1), .total = tensor.size(1)}};
  }
  return labels;
}

int64_t sample_unit(int64_t samples, const std::optional<sums::Lattice>& lattice) {
  return lattice ? sums::leaf_unit(samples, lattice->batch) : 1;
}

}  // namespace tessera::plan
