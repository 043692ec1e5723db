#include "tessera/dtensor/exact/squared_norm.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/exact/norm_levels.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/plan/exact_sum.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/kernels/base/float_environment.h"
#include "tessera/kernels/rows/clip_norm.h"
#include "tessera/kernels/rows/rows.h"
#include "tessera/rules/engine/dispatch_floats.h"
#include "tessera/rules/engine/dtypes.h"

namespace tessera::dtensor {

namespace {

using comm::NodeSum;
using sums::Node;
using layout::Placements;
using layout::Range;

constexpr const char* kName = "squared_norm";

// What the rank at one place holds of the sum over a tensor.
struct Held {
  std::vector<Range> rows;    // in order
  std::vector<Node> columns;  // of each of these rows
  std::vector<Node> of_rows;  // once all ranks have all columns of their rows

  int64_t row_count() const {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                           [](int64_t n, const Range& r) { return n + r.size(); });
  }
};

// The squares of one tensor on the way to their sum: of each row a value for every node of column leaves; once these
// are one, a value for every node of rows. Each axis that cuts the tensor is merged by an exchange of the values, which
// its owner packs with those of other tensors.
class SquaredNorm {
 public:
  SquaredNorm(RankState& state, const Spec& spec)
      : state_(state),
        spec_(spec),
        columns_(columns_of(spec->sizes)),
        rows_(rows_of(spec->sizes)),
        placements_(spec->placements),
        is_here_(spec->holds(state.ctx.coord(spec->mesh))) {
    const auto is_of_runs = [&](const layout::Placement& cut) {
      return !cut.is_interleaved() && !cut.is_spanning() &&
             (cut.dim == rows_.dim || (cut.dim == columns_.dim && cuts_between_leaves()));
    };
    placements_ = layout::without_cuts(placements_, [&](const layout::Placement& cut) { return !is_of_runs(cut); });
    source_ = spec.with(placements_);
  }

  // Begins with this rank's part. Collective where the tensor is cut otherwise than between rows and leaves.
  void begin(const at::Tensor& part) {
    const at::Tensor held = rules::widened(
        source_ == spec_ ? part : run_move(state_.ctx, *state_.engine.moves.find_or_plan(spec_, source_), part, kName));
    options_ = held.options();
    if (spec_->numel() == 0 || !is_here_) {
      return;
    }
    const layout::Coord& coord = state_.ctx.coord(spec_->mesh);
    const Range rows = range_of(rows_, coord), columns = range_of(columns_, coord);
    sums_ = squares_of(held.contiguous().view({rows.size(), columns.size() * columns_.each}), columns);
    add_rows(held_at(coord));
  }

  bool is_cut_by(int64_t axis) const { return spec_->numel() > 0 && is_here_ && placements_[axis].is_shard(); }

  // Whether it is at one coordinate of the axis, on the line of this rank; and takes what that coordinate has.
  bool is_on(int64_t axis) const {
    if (!placements_[axis].is_on()) {
      return false;
    }
    const layout::Coord& coord = state_.ctx.coord(spec_->mesh);
    for (int64_t other = 0; other < spec_->mesh.ndim(); ++other) {
      if (other != axis && !placements_[other].holds(coord[other])) {
        return false;
      }
    }
    return true;
  }
  int64_t coordinate(int64_t axis) const { return placements_[axis].coordinate(); }
  void receive(int64_t axis, const at::Tensor& sum) {
    received_ = sum;
    is_here_ = true;
    placements_[axis] = layout::Replicate();
  }

  // Of the rank at `coord`, before `axis` is merged: how many values it holds, and, of this one, which.
  int64_t count_at(const layout::Coord& coord) const {
    const Held held = held_at(coord);
    return has_whole_rows() ? static_cast<int64_t>(held.of_rows.size())
                            : static_cast<int64_t>(held.columns.size()) * held.row_count();
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const NodeSum& sum : sums_) {
      values.push_back(sum.sum);
    }
    return values;
  }
  at::TensorOptions options() const { return options_; }

  // Takes the values of all members of the axis, in their order.
  void merge(int64_t axis, const std::vector<at::Tensor>& values) {
    layout::Coord coord = state_.ctx.coord(spec_->mesh);
    const layout::Coord own = coord;
    std::vector<Held> all;
    for (coord[axis] = 0; coord[axis] < spec_->mesh.axis(axis).size; ++coord[axis]) {
      all.push_back(held_at(coord));
    }
    const bool cuts_waiting_rows = placements_[axis].dim == rows_.dim && !has_whole_rows();
    sums_ = cuts_waiting_rows ? with_all_rows(all, values) : with_all_nodes(all, values);
    merged_.push_back(axis);
    add_rows(held_at(own));
  }

  // The sum, once every axis that cuts the tensor is merged.
  at::Tensor result() const {
    if (spec_->numel() == 0) {
      return at::zeros({}, options_);
    }
    if (received_.defined()) {
      return received_;
    }
    TESSERA_ASSERT(sums_.size() == 1, sums_.size(), " nodes are left of ", rows_.root().str());
    return sums_[0].sum.squeeze(0);
  }

 private:
  // Asked of all ranks' cuts, so that all decide alike.
  bool cuts_between_leaves() const {
    layout::Coord coord(spec_->mesh.ndim());
    return cuts_between_leaves(spec_->axes_of(columns_.dim), 0, coord);
  }

  bool cuts_between_leaves(const std::vector<int64_t>& axes, size_t depth, layout::Coord& coord) const {
    if (depth == axes.size()) {
      const Range held = layout::local_range(spec_->mesh, spec_->placements, columns_.dim, columns_.size, coord);
      return columns_.is_of_whole_leaves(held);
    }
    bool fits = true;
    for (int64_t i = 0; i < spec_->mesh.axis(axes[depth]).size && fits; ++i) {
      coord[axes[depth]] = i;
      fits = cuts_between_leaves(axes, depth + 1, coord);
    }
    return fits;
  }

  Range range_of(const NormLevel& level, const layout::Coord& coord) const {
    return level.dim < 0 || level.dim >= spec_->ndim()
               ? Range{0, level.size}
               : layout::local_range(spec_->mesh, placements_, level.dim, level.size, coord);
  }

  // What the ranks that differ from `coord` on merged axes held in the beginning.
  void collect_runs(const NormLevel& level, layout::Coord& coord, size_t depth, std::vector<Range>& runs) const {
    while (depth < merged_.size() && placements_[merged_[depth]].dim != level.dim) {
      ++depth;
    }
    if (depth == merged_.size()) {
      if (const Range run = range_of(level, coord); run.size() > 0) {
        runs.push_back(run);
      }
      return;
    }
    const int64_t axis = merged_[depth], own = coord[axis];
    for (coord[axis] = 0; coord[axis] < spec_->mesh.axis(axis).size; ++coord[axis]) {
      collect_runs(level, coord, depth + 1, runs);
    }
    coord[axis] = own;
  }

  std::vector<Range> runs_of(const NormLevel& level, layout::Coord coord) const {
    std::vector<Range> runs;
    collect_runs(level, coord, 0, runs);
    std::sort(runs.begin(), runs.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    return runs;
  }

  Held held_at(const layout::Coord& coord) const {
    Held held{runs_of(rows_, coord), nodes_of(columns_, runs_of(columns_, coord)), {}};
    if (has_whole_rows()) {
      held.of_rows = nodes_of(rows_, held.rows);
    }
    return held;
  }

  // Whether every axis that cuts columns is merged: the same on all ranks.
  bool has_whole_rows() const {
    const auto axes = layout::axes_of_dim(spec_->mesh, placements_, columns_.dim);
    return std::all_of(axes.begin(), axes.end(),
                       [&](int64_t axis) { return std::find(merged_.begin(), merged_.end(), axis) != merged_.end(); });
  }

  // For each node of column leaves, the squares of every row.
  std::vector<NodeSum> squares_of(const at::Tensor& x, const Range& columns) const {
    std::vector<NodeSum> sums;
    const int64_t begin = columns_.things(columns).begin, all = columns_.all(), leaf = columns_.leaf();
    for (const Node& node : columns_.cover(columns)) {
      const int64_t first = node.begin * leaf, length = std::min(node.end * leaf, all) - first;
      const at::Tensor out = at::empty({x.size(0)}, x.options());
      rules::dispatch_floats(x, kName, [&]<typename T>() {
        kernels::clip_row_squares<T>({x.size(0), length}, all, {x.const_data_ptr<T>() + (first - begin), x.stride(0)},
                                     out.data_ptr<T>());
      });
      sums.push_back({node, out});
    }
    return sums;
  }

  // Where the columns became one: for each node of rows, their tree.
  void add_rows(const Held& held) {
    if (!has_whole_rows() || is_of_rows_) {
      return;
    }
    is_of_rows_ = true;
    const at::Tensor of_rows = sums_.at(0).sum;
    sums_.clear();
    for (const Node& node : held.of_rows) {
      int64_t at = 0;  // of the node's first row among those that are held
      for (const Range& run : held.rows) {
        at += std::clamp(node.begin - run.begin, int64_t{0}, run.size());
      }
      const at::Tensor out = at::empty({1}, of_rows.options());
      rules::dispatch_floats(of_rows, kName, [&]<typename T>() {
        *out.data_ptr<T>() = kernels::tree_sum<T>(node.size(), of_rows.const_data_ptr<T>() + at);
      });
      sums_.push_back({node, out});
    }
  }

  // Of values that lie as `held` says, each node's.
  std::vector<NodeSum> unpacked(const Held& held, const at::Tensor& values) const {
    const std::vector<Node>& nodes = has_whole_rows() ? held.of_rows : held.columns;
    const int64_t each = has_whole_rows() ? 1 : held.row_count();
    std::vector<NodeSum> sums;
    for (const Node& node : nodes) {
      sums.push_back({node, values.narrow(0, static_cast<int64_t>(sums.size()) * each, each)});
    }
    return sums;
  }

  // Members hold other nodes of the same rows, or of all.
  std::vector<NodeSum> with_all_nodes(const std::vector<Held>& all, const std::vector<at::Tensor>& values) const {
    std::vector<NodeSum> sums;
    for (size_t i = 0; i < all.size(); ++i) {
      auto own = unpacked(all[i], values[i]);
      std::move(own.begin(), own.end(), std::back_inserter(sums));
    }
    return comm::close_nodes(std::move(sums), is_of_rows_ ? rows_.root() : columns_.root());
  }

  // Members hold the same nodes of other rows.
  std::vector<NodeSum> with_all_rows(const std::vector<Held>& all, const std::vector<at::Tensor>& values) const {
    std::vector<NodeSum> sums;
    for (size_t node = 0; node < all[0].columns.size(); ++node) {
      std::vector<std::pair<int64_t, at::Tensor>> pieces;  // first row, values
      for (size_t i = 0; i < all.size(); ++i) {
        int64_t at = static_cast<int64_t>(node) * all[i].row_count();
        for (const Range& run : all[i].rows) {
          pieces.emplace_back(run.begin, values[i].narrow(0, at, run.size()));
          at += run.size();
        }
      }
      std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      std::vector<at::Tensor> in_order;
      for (const auto& [row, piece] : pieces) {
        in_order.push_back(piece);
      }
      sums.push_back({all[0].columns[node], at::cat(in_order)});
    }
    return sums;
  }

  RankState& state_;
  const Spec spec_;
  const NormLevel columns_, rows_;
  Placements placements_;
  Spec source_;
  at::TensorOptions options_;
  std::vector<int64_t> merged_;  // axes
  std::vector<NodeSum> sums_;
  bool is_of_rows_ = false;
  bool is_here_ = true;
  at::Tensor received_;  // the sum, from the coordinate that had the tensor
};

at::Tensor as_bytes(const at::Tensor& values) { return values.contiguous().view(at::kByte).flatten(); }

// One exchange: the ranks of the axis tell each other the sums over tensors that are at one of them.
void tell_over(RankState& state, const layout::Mesh& mesh, int64_t axis, std::vector<SquaredNorm*> norms) {
  std::erase_if(norms, [&](const SquaredNorm* norm) { return !norm->is_on(axis); });
  if (norms.empty()) {
    return;
  }
  const at::TensorOptions bytes = at::TensorOptions().dtype(at::kByte).device(norms[0]->options().device());
  const int64_t own = state.ctx.coord(mesh)[axis], size = mesh.axis(axis).size;
  std::vector<at::Tensor> sent = {at::empty({0}, bytes)}, from;
  std::vector<int64_t> counts(static_cast<size_t>(size));
  for (const SquaredNorm* norm : norms) {
    counts[norm->coordinate(axis)] += static_cast<int64_t>(norm->options().dtype().itemsize());
    if (norm->coordinate(axis) == own) {
      sent.push_back(as_bytes(norm->result().reshape({1})));
    }
  }
  for (const int64_t count : counts) {
    from.push_back(at::empty({count}, bytes));
  }
  const at::Tensor packed = at::cat(sent);
  state.ctx.ledger.record("all_gather", mesh.axis(axis).name, kName, packed.numel() * (size - 1));
  state.ctx.axis(mesh, axis).all_gather(from, packed)->wait();
  std::vector<int64_t> at(from.size());
  for (SquaredNorm* norm : norms) {
    const int64_t member = norm->coordinate(axis), length = static_cast<int64_t>(norm->options().dtype().itemsize());
    const at::Tensor value = from[member].narrow(0, at[member], length).clone();
    norm->receive(axis, value.view(c10::typeMetaToScalarType(norm->options().dtype())).squeeze(0));
    at[member] += length;
  }
}

// One exchange: each rank of the axis gets what the others hold of all tensors that the axis cuts.
void merge_over(RankState& state, const layout::Mesh& mesh, int64_t axis, std::vector<SquaredNorm*> norms) {
  std::erase_if(norms, [&](const SquaredNorm* norm) { return !norm->is_cut_by(axis); });
  if (norms.empty()) {
    return;
  }
  std::vector<at::Tensor> own;
  for (const SquaredNorm* norm : norms) {
    for (const at::Tensor& values : norm->values()) {
      own.push_back(as_bytes(values));
    }
  }
  const at::TensorOptions bytes = at::TensorOptions().dtype(at::kByte).device(norms[0]->options().device());
  const at::Tensor packed = own.empty() ? at::empty({0}, bytes) : at::cat(own);
  layout::Coord coord = state.ctx.coord(mesh);
  std::vector<std::vector<int64_t>> sizes;  // of each member, of each tensor
  std::vector<at::Tensor> from;
  for (coord[axis] = 0; coord[axis] < mesh.axis(axis).size; ++coord[axis]) {
    auto& of_member = sizes.emplace_back();
    for (const SquaredNorm* norm : norms) {
      of_member.push_back(norm->count_at(coord) * static_cast<int64_t>(norm->options().dtype().itemsize()));
    }
    from.push_back(at::empty({std::accumulate(of_member.begin(), of_member.end(), int64_t{0})}, bytes));
  }
  state.ctx.ledger.record("all_gather", mesh.axis(axis).name, kName, packed.numel() * (mesh.axis(axis).size - 1));
  state.ctx.axis(mesh, axis).all_gather(from, packed)->wait();
  std::vector<int64_t> at(from.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    std::vector<at::Tensor> values;
    for (size_t member = 0; member < from.size(); ++member) {
      const at::Tensor own_bytes = from[member].narrow(0, at[member], sizes[member][i]).clone();
      values.push_back(own_bytes.view(c10::typeMetaToScalarType(norms[i]->options().dtype())));
      at[member] += sizes[member][i];
    }
    norms[i]->merge(axis, values);
  }
}

at::Tensor squares_of_plain(const at::Tensor& given) {
  const at::Tensor tensor = rules::widened(given);
  const at::Tensor x =
      tensor.dim() < 2 ? tensor.contiguous().view({1, tensor.numel()}) : tensor.contiguous().flatten(1);
  const at::Tensor out = at::empty({}, x.options());
  rules::dispatch_floats(x, kName, [&]<typename T>() {
    *out.data_ptr<T>() = kernels::clip_squares<T>({x.size(0), x.size(1)}, {x.const_data_ptr<T>(), x.size(1)});
  });
  return out;
}

// The layout of a DTensor whose part is its value.
Spec spec_of_value(RankState& state, const at::Tensor& tensor) {
  Meta& meta = *meta_of(tensor);
  settle(state, meta, kName);
  refresh(meta);
  TESSERA_CHECK(!meta.spec->has_partial, "[squared_norm] of ", meta.spec.str(), " (rank ", state.ctx.rank,
                "); accepted: no Partial");
  state.ctx.program.note(kName, meta.spec->hash);
  return meta.spec;
}

// The scalars themselves, the same on every rank.
std::vector<at::Tensor> squares_of(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<at::Tensor> squares(tensors.size());
  std::vector<std::unique_ptr<SquaredNorm>> norms(tensors.size());
  std::vector<SquaredNorm*> placed;
  std::optional<layout::Mesh> mesh;
  if (RankState* state = RankState::current()) {
    merge_complete(*state, tensors.vec(), kSmallTogether, kName);  // gradients of a loop, which nobody read yet
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_dtensor(tensors[i])) {
      squares[i] = squares_of_plain(tensors[i]);
      continue;
    }
    RankState& state = RankState::require();
    const Spec spec = spec_of_value(state, tensors[i]);
    TESSERA_CHECK(!mesh || spec->mesh == *mesh, "[squared_norm] of tensors on {", mesh->str(), "} and {",
                  spec->mesh.str(), "}; accepted: one mesh");
    mesh = spec->mesh;
    const comm::Caller caller(state.ctx, kName);
    norms[i] = std::make_unique<SquaredNorm>(state, spec);
    norms[i]->begin(meta_of(tensors[i])->local);
    placed.push_back(norms[i].get());
  }
  for (int64_t axis = mesh ? mesh->ndim() - 1 : -1; axis >= 0; --axis) {
    RankState& state = RankState::require();
    const comm::Caller caller(state.ctx, kName);
    merge_over(state, *mesh, axis, placed);
  }
  for (int64_t axis = mesh ? mesh->ndim() - 1 : -1; axis >= 0; --axis) {
    RankState& state = RankState::require();
    const comm::Caller caller(state.ctx, kName);
    tell_over(state, *mesh, axis, placed);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    squares[i] = norms[i] ? norms[i]->result() : squares[i];
  }
  return squares;
}

// A replicated scalar on the mesh of these tensors, marked if one of them lacks samples of the step; plain if all are.
at::Tensor wrapped(at::Tensor scalar, c10::ArrayRef<at::Tensor> tensors) {
  const auto first = std::find_if(tensors.begin(), tensors.end(), is_dtensor);
  if (first == tensors.end()) {
    return scalar;
  }
  const layout::Mesh& mesh = meta_of(*first)->spec->mesh;
  const c10::ScalarType dtype = scalar.scalar_type();
  at::Tensor result = wrap(std::move(scalar), Spec::contiguous(mesh, Placements(mesh.ndim()), {}, dtype));
  for (const at::Tensor& tensor : tensors) {
    if (is_dtensor(tensor) && is_unfinished(*meta_of(tensor))) {
      meta_of(result)->make_rare().is_unfinished = true;
    }
  }
  return result;
}

}  // namespace

at::Tensor squared_norm(const at::Tensor& tensor) {
  LocalScope scope;
  return wrapped(squares_of({tensor})[0], {tensor});
}

at::Tensor joint_norm(c10::ArrayRef<at::Tensor> tensors) {
  TESSERA_CHECK(!tensors.empty(), "[joint_norm] of no tensor");
  LocalScope scope;
  const std::vector<at::Tensor> squares = squares_of(tensors);
  const bool is_wide =
      std::any_of(squares.begin(), squares.end(), [](const at::Tensor& x) { return x.scalar_type() == at::kDouble; });
  const at::Tensor norm = at::empty({}, squares[0].options().dtype(is_wide ? at::kDouble : at::kFloat));
  rules::dispatch_floats(norm, "joint_norm", [&]<typename T>() {
    std::vector<T> values;
    for (const at::Tensor& x : squares) {
      values.push_back(static_cast<T>(x.item<double>()));
    }
    const kernels::FloatEnvironment environment;
    *norm.data_ptr<T>() = std::sqrt(kernels::tree_sum<T>(static_cast<int64_t>(values.size()), values.data()));
  });
  return wrapped(norm, tensors);
}

}  // namespace tessera::dtensor
