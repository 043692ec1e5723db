// Batches of which each data rank has rows of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/layout/spec.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

// What a program passes to a placed model on each rank.
enum class Batch : uint8_t {
  kWhole,  // all rows, the same on every rank
  kLocal,  // its own rows: those of all data coordinates, in their order, are the batch
};

// The rows of one batch that ranks pass as Batch::kLocal. A rank may have none.
//
// They are worked on where those of a whole batch would be: rows that a rank has beyond its part, or of a leaf of exact
// sums that is another's, move there; where all have their parts already nothing moves. One per pass; the rank's own
// thread uses it.
class LocalRows {
 public:
  // Tensors whose dim 0 is, on every rank, as long as that of the first one are rows; the others are alike on all
  // ranks. `who` is what took them, for errors. Throws on every rank if other dims or dtypes differ, or if ranks of one
  // data coordinate have other numbers of rows. Collective over the plan's mesh, which has batch axes: two numbers a
  // tensor.
  LocalRows(const plan::Plan& plan, const std::vector<dtensor::NamedValue>& batch, const char* who);

  // Whether any tensor has rows.
  bool has_rows() const { return std::find(are_rows_.begin(), are_rows_.end(), true) != are_rows_.end(); }
  // Of all ranks, and of this one.
  int64_t count() const;
  int64_t own_count() const { return counts_[own_]; }

  // Whether tensor `index` of the batch has the rows along dim 0.
  bool are_rows(size_t index) const { return are_rows_[index]; }

  // Throws if ranks of one data coordinate were given other rows, or tensors that are no rows differ between ranks.
  // Collective over the plan's mesh.
  void verify_same(const std::vector<dtensor::NamedValue>& batch) const;

  // The rows of this run of those of all ranks, as a batch of their own, whose part of this rank place() takes out of
  // its rows.
  LocalRows of(const layout::Range& run) const;

  // From now on rows lie so on the plan's mesh.
  void deal(const layout::Placements& placements);

  // This rank's rows, as its part of a tensor that `spec` cuts so along dim 0. Differentiable. Collective over the
  // plan's mesh where rows move.
  at::Tensor place(const at::Tensor& rows, const layout::Spec& spec) const;

 private:
  struct SeenByAll;
  // Of each data coordinate, of this tensor, which is the first that has rows.
  void count_rows(const SeenByAll& seen, size_t tensor, const dtensor::NamedValue& value);

  // The data coordinate of the rank at `position` of the plan's mesh.
  size_t data_coordinate(size_t position) const;
  [[noreturn]] void refuse(const char* why, const dtensor::NamedValue& value) const;

  const std::vector<std::string> batch_axes_;
  layout::Mesh mesh_, flat_;  // the plan's; with one axis in place of those that cut the batch
  int64_t axis_;              // that one
  const char* who_;
  std::vector<int64_t> counts_;  // by data coordinate
  size_t own_ = 0;               // which is this rank's
  int64_t first_ = 0;            // of what this rank passed, the first that is in the batch
  std::vector<bool> are_rows_;   // by tensor
  bool are_dealt_ = false;       // as they were passed
};

}  // namespace tessera::parallel
