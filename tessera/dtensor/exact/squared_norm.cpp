#include "tessera/dtensor/exact/squared_norm.h"

#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
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

// One level of the sum: `leaves` leaves along a dim, an index of which holds `each` things.
struct Level {
  int64_t dim = 0;
  int64_t size = 0;  // of the dim
  int64_t each = 1;
  int64_t leaves = 1;

  int64_t all() const { return size * each; }
  int64_t leaf() const { return sums::leaf_unit(all(), leaves); }
  Node root() const { return sums::leaves_of({0, all()}, all(), leaves); }
  Range things(const Range& indices) const { return {indices.begin * each, indices.end * each}; }
  bool is_of_whole_leaves(const Range& indices) const {
    return sums::is_of_whole_leaves(things(indices), all(), leaves);
  }
  std::vector<Node> cover(const Range& indices) const {
    return sums::cover(sums::leaves_of(things(indices), all(), leaves), root().end);
  }
};

Level columns_of(c10::IntArrayRef sizes) {
  const bool is_row = sizes.size() == 1;
  const int64_t size = is_row ? sizes[0] : sizes.size() < 2 ? 1 : sizes[1];
  return {is_row ? 0 : 1, size, sizes.size() < 2 ? 1 : c10::multiply_integers(sizes.slice(2)), kernels::kClipLeaves};
}

// Each row is a leaf. A tensor of one dim is one row, which no axis cuts.
Level rows_of(c10::IntArrayRef sizes) {
  const int64_t rows = sizes.size() < 2 ? 1 : sizes[0];
  return {sizes.size() < 2 ? -1 : 0, rows, 1, std::max<int64_t>(rows, 1)};
}

class SquaredNorm {
 public:
  SquaredNorm(RankState& state, const Spec& spec)
      : state_(state),
        spec_(spec),
        columns_(columns_of(spec->sizes)),
        rows_(rows_of(spec->sizes)),
        placements_(spec->placements) {
    const auto is_of_runs = [&](const layout::Placement& cut) {
      return !cut.is_interleaved() && (cut.dim == rows_.dim || (cut.dim == columns_.dim && cuts_between_leaves()));
    };
    placements_ = layout::without_cuts(placements_, [&](const layout::Placement& cut) { return !is_of_runs(cut); });
    source_ = spec.with(placements_);
  }

  at::Tensor run(const at::Tensor& part) {
    const at::Tensor held =
        source_ == spec_ ? part : run_move(state_.ctx, *state_.engine.moves.find_or_plan(spec_, source_), part, kName);
    const layout::Coord& coord = state_.ctx.coord(spec_->mesh);
    const Range rows = range_of(rows_, coord), columns = range_of(columns_, coord);
    const at::Tensor x = rules::widened(held).contiguous().view({rows.size(), columns.size() * columns_.each});
    std::vector<NodeSum> sums = merged(columns_, squares_of(x, columns), {rows.size()}, x.options());
    const at::Tensor of_rows = sums.empty() ? at::zeros({rows.size()}, x.options()) : sums[0].sum;
    sums = merged(rows_, trees_of(of_rows, rows), {1}, x.options());
    return sums.empty() ? at::zeros({}, x.options()) : sums[0].sum.squeeze(0);
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

  Range range_of(const Level& level, const layout::Coord& coord) const {
    return level.dim < 0 || level.dim >= spec_->ndim()
               ? Range{0, level.size}
               : layout::local_range(spec_->mesh, placements_, level.dim, level.size, coord);
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

  // For each node of rows, their tree.
  std::vector<NodeSum> trees_of(const at::Tensor& of_rows, const Range& rows) const {
    std::vector<NodeSum> sums;
    for (const Node& node : rows_.cover(rows)) {
      const at::Tensor out = at::empty({1}, of_rows.options());
      rules::dispatch_floats(of_rows, kName, [&]<typename T>() {
        *out.data_ptr<T>() = kernels::tree_sum<T>(node.size(), of_rows.const_data_ptr<T>() + (node.begin - rows.begin));
      });
      sums.push_back({node, out});
    }
    return sums;
  }

  // The root from all ranks' sums; nothing if there are no leaves. Axes that are merged count as whole from then on.
  std::vector<NodeSum> merged(const Level& level, std::vector<NodeSum> mine, const std::vector<int64_t>& sizes,
                              at::TensorOptions options) {
    const Node root = level.root();
    if (root.size() == 0 || sizes[0] == 0) {
      return {};
    }
    auto axes = level.dim < 0 ? std::vector<int64_t>{} : layout::axes_of_dim(spec_->mesh, placements_, level.dim);
    std::reverse(axes.begin(), axes.end());
    for (int64_t axis : axes) {
      layout::Coord coord = state_.ctx.coord(spec_->mesh);
      sums::MergePlan::Nodes nodes;
      for (coord[axis] = 0; coord[axis] < spec_->mesh.axis(axis).size; ++coord[axis]) {
        nodes.push_back(level.cover(range_of(level, coord)));
      }
      const sums::MergePlan plan(std::move(nodes), root);
      comm::Merge merge{.plan = plan, .sizes = sizes, .options = options, .memory = comm::Merge::Memory::kReuse};
      for (NodeSum& sum : mine) {
        merge.sums.push_back(std::move(sum.sum));
      }
      mine = run_merge(state_.ctx, spec_->mesh, axis, kName, merge);
      placements_[axis] = layout::Replicate();
    }
    mine = comm::close_nodes(std::move(mine), root);
    TESSERA_ASSERT(mine.size() == 1, mine.size(), " nodes are left of ", root.str());
    return mine;
  }

  RankState& state_;
  const Spec spec_;
  const Level columns_, rows_;
  Placements placements_;
  Spec source_;
};

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

// The scalar itself, the same on every rank.
at::Tensor squares_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) {
    return squares_of_plain(tensor);
  }
  RankState& state = RankState::require();
  Meta& meta = *meta_of(tensor);
  settle(state, meta, kName);
  refresh(meta);
  TESSERA_CHECK(!meta.spec->has_partial, "[squared_norm] of ", meta.spec.str(), " (rank ", state.ctx.rank,
                "); accepted: no Partial");
  state.ctx.program.note(kName, meta.spec->hash);
  comm::Caller caller(state.ctx, kName);
  return SquaredNorm(state, meta.spec).run(meta.local);
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
    if (!is_dtensor(tensor)) {
      continue;
    }
    TESSERA_CHECK(meta_of(tensor)->spec->mesh == mesh, "[squared_norm] of tensors on {", mesh.str(), "} and {",
                  meta_of(tensor)->spec->mesh.str(), "}; accepted: one mesh");
    if (is_unfinished(*meta_of(tensor))) {
      meta_of(result)->make_rare().is_unfinished = true;
    }
  }
  return result;
}

}  // namespace

at::Tensor squared_norm(const at::Tensor& tensor) {
  LocalScope scope;
  return wrapped(squares_of(tensor), {tensor});
}

at::Tensor joint_norm(c10::ArrayRef<at::Tensor> tensors) {
  TESSERA_CHECK(!tensors.empty(), "[joint_norm] of no tensor");
  LocalScope scope;
  std::vector<at::Tensor> squares;
  for (const at::Tensor& tensor : tensors) {
    squares.push_back(squares_of(tensor));
  }
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
