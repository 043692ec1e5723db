#include "tessera/parallel/local_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/comm/processes/packing.h"
#include "tessera/dtensor/ops/layout_ops.h"

namespace tessera::parallel {
namespace {

using dtensor::NamedValue;
using dtensor::RankState;
using layout::Placements;

// A tensor of the batch, as one rank has it.
struct Seen {
  int64_t rows = -1;  // -1: it has no dim, or lies on a mesh already
  uint64_t rest = 0;  // what is alike on all ranks
};

std::string name_of_axis(const plan::Plan& plan) {
  return plan.batch_axes.size() == 1 ? plan.batch_axes.front() : "rows";
}

layout::Mesh with_one_batch_axis(const plan::Plan& plan) {
  return plan.batch_axes.size() == 1 ? plan.mesh : plan.mesh.flatten(plan.batch_axes, name_of_axis(plan));
}

Seen seen_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const bool is_placed = dtensor::is_dtensor(dtensor::unwrapped(tensor)), has_rows = !is_placed && tensor.dim() > 0;
  const std::string rest = c10::str(is_placed, tensor.scalar_type(), tensor.sizes().slice(has_rows ? 1 : 0));
  return {has_rows ? tensor.size(0) : -1, base::hash_string(rest, 1)};
}

}  // namespace

// The batch as each rank has it.
struct LocalRows::SeenByAll {
  std::vector<std::vector<Seen>> tensors;  // by rank and tensor

  // Collective over the ranks.
  SeenByAll(comm::Communicator& ranks, const std::vector<NamedValue>& batch) {
    comm::Packer packer;
    for (const NamedValue& value : batch) {
      const Seen own = seen_of(value.tensor);
      packer.number(static_cast<uint64_t>(own.rows)).number(own.rest);
    }
    for (const std::string& message : dtensor::gather_unseen(ranks, packer.take())) {
      comm::Unpacker reader(message);
      for (Seen& each : tensors.emplace_back(batch.size())) {
        each.rows = static_cast<int64_t>(reader.number());
        each.rest = reader.number();
      }
    }
  }

  size_t ranks() const { return tensors.size(); }
  int64_t rows(size_t rank, size_t tensor) const { return tensors[rank][tensor].rows; }
  // Whether all ranks have as many rows of the tensor as the first one; and as of the tensor `other`.
  bool have_same_number(size_t tensor) const {
    return holds([&](const auto& all) { return all[tensor].rows == rows(0, tensor); });
  }
  bool have_as_many(size_t tensor, size_t other) const {
    return holds([&](const auto& all) { return all[tensor].rows == all[other].rows; });
  }
  // Whether the tensor is on all ranks the same but for its rows.
  bool are_alike(size_t tensor) const {
    const Seen& first = tensors[0][tensor];
    return holds(
        [&](const auto& all) { return all[tensor].rest == first.rest && (all[tensor].rows < 0) == (first.rows < 0); });
  }
  bool holds(const std::function<bool(const std::vector<Seen>&)>& of) const {
    return std::all_of(tensors.begin(), tensors.end(), of);
  }
};

LocalRows::LocalRows(const plan::Plan& plan, const std::vector<NamedValue>& batch, const char* who)
    : batch_axes_(plan.batch_axes),
      mesh_(plan.mesh),
      flat_(with_one_batch_axis(plan)),
      axis_(flat_.axis_index(name_of_axis(plan))),
      who_(who),
      counts_(static_cast<size_t>(flat_.axis(axis_).size)),
      are_rows_(batch.size()) {
  RankState& state = RankState::require();
  own_ = static_cast<size_t>(state.ctx.coord(flat_)[static_cast<size_t>(axis_)]);
  const SeenByAll seen(state.ctx.whole(mesh_), batch);
  std::optional<size_t> first;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!seen.are_alike(i)) {
      refuse("differ in more than the number of rows", batch[i]);
    }
    if (seen.rows(0, i) < 0) {
      continue;
    }
    if (!first) {
      first = i;
      count_rows(seen, i, batch[i]);
    }
    are_rows_[i] = seen.have_as_many(i, *first);
    if (!are_rows_[i] && !seen.have_same_number(i)) {
      refuse("have neither as many rows as the first on every rank nor the same number on all", batch[i]);
    }
  }
}

void LocalRows::count_rows(const SeenByAll& seen, size_t tensor, const NamedValue& value) {
  std::vector<bool> is_counted(counts_.size());
  for (size_t rank = 0; rank < seen.ranks(); ++rank) {
    const size_t coordinate = data_coordinate(rank);
    const int64_t rows = seen.rows(rank, tensor);
    if (is_counted[coordinate] && counts_[coordinate] != rows) {
      refuse("have other rows on ranks of one data coordinate", value);
    }
    counts_[coordinate] = rows, is_counted[coordinate] = true;
  }
}

size_t LocalRows::data_coordinate(size_t position) const {
  const auto coord = flat_.coord_of(mesh_.ranks()[position]);
  return static_cast<size_t>((*coord)[static_cast<size_t>(axis_)]);
}

void LocalRows::refuse(const char* why, const NamedValue& value) const {
  const at::Tensor& tensor = value.tensor;
  const auto outline = tensor.defined() ? at::empty(tensor.sizes(), tensor.options().device(at::kMeta)) : tensor;
  RankState& state = RankState::require();
  const std::string difference = dtensor::difference_between_ranks(state, mesh_, {{value.name, outline}});
  TESSERA_CHECK(
      false, "[", who_, "] the ranks' own rows are no rows of one batch: they ", why, ": ", difference, " (rank ",
      state.ctx.rank,
      "). Accepted: tensors that all ranks have, with the same sizes but for the rows (pad them to one length); "
      "as many rows in each tensor of a rank, 0 too; the same rows on ranks of one data coordinate");
}

int64_t LocalRows::count() const { return std::accumulate(counts_.begin(), counts_.end(), int64_t{0}); }

void LocalRows::verify_same(const std::vector<NamedValue>& batch) const {
  RankState& state = RankState::require();
  std::vector<NamedValue> rows, others;
  for (size_t i = 0; i < batch.size(); ++i) {
    (are_rows_[i] ? rows : others).push_back(batch[i]);
  }
  std::string difference = dtensor::difference_between_ranks(state, mesh_, others);
  TESSERA_CHECK(difference.empty(), "[", who_,
                "] tensors that are no rows of the batch differ between ranks: ", difference, " (rank ", state.ctx.rank,
                "). Accepted: the same on every rank");
  for (int64_t axis = 0; axis < flat_.ndim(); ++axis) {
    if (axis != axis_ && flat_.axis(axis).size > 1) {
      difference += dtensor::difference_between_ranks(state.ctx.axis(flat_, axis), rows);
    }
  }
  TESSERA_CHECK(difference.empty(), "[", who_, "] ranks of one data coordinate were given different rows: ", difference,
                " (rank ", state.ctx.rank, "). Accepted: the same rows on ranks whose coordinates on ",
                base::join(batch_axes_, " and "), " are the same, so give a sampler these coordinates, not the rank");
}

LocalRows LocalRows::of(const layout::Range& run) const {
  LocalRows result = *this;
  int64_t begin = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const int64_t end = begin + counts_[i];
    const int64_t from = std::clamp(run.begin, begin, end), to = std::clamp(run.end, begin, end);
    result.counts_[i] = to - from;
    if (i == own_) {
      result.first_ = from - begin;
    }
    begin = end;
  }
  return result;
}

void LocalRows::deal(const Placements& placements) {
  const Placements cuts = layout::normal_form(mesh_, placements);
  are_dealt_ = true;
  for (size_t position = 0; are_dealt_ && position < mesh_.ranks().size(); ++position) {
    const auto coord = mesh_.coord_of(mesh_.ranks()[position]);
    const int64_t part = layout::local_range(mesh_, cuts, 0, count(), *coord).size();
    are_dealt_ = part == counts_[data_coordinate(position)];
  }
}

at::Tensor LocalRows::place(const at::Tensor& passed_rows, const layout::Spec& spec) const {
  const bool are_all = passed_rows.size(0) == own_count();
  const at::Tensor rows = are_all ? passed_rows : passed_rows.narrow(0, first_, own_count());
  if (are_dealt_) {
    return dtensor::call_from_plain(rows, spec);
  }
  Placements passed(static_cast<size_t>(flat_.ndim()));
  passed[static_cast<size_t>(axis_)] = layout::RaggedShard({0}, counts_);
  const auto own = layout::Spec::contiguous(flat_, passed, spec->sizes, spec->dtype, spec->labels);
  return dtensor::call_redistribute(dtensor::call_from_plain(rows, own), spec);
}

}  // namespace tessera::parallel
