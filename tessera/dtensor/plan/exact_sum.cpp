#include "tessera/dtensor/plan/exact_sum.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/call/flight.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Range;

}  // namespace

std::vector<comm::NodeSum> run_merge(comm::RankContext& ctx, const layout::JoinedAxes& line, const char* op,
                                     const comm::Merge& merge) {
  comm::Communicator& group = ctx.axis(line.mesh, line.axis);
  ctx.ledger.record("exact_merge", line.name, op, merge.bytes_sent(group.rank()));
  return group.merge(merge);
}

sums::Merging ScatteringMove::next(const std::vector<int64_t>& axes) {
  sums::Merging merging;
  merging.from = with_sums();
  std::erase_if(left_, [&](int64_t axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); });
  merging.scatter = scatter_over(axes);
  merging.to = with_sums();
  return merging;
}

layout::Spec ScatteringMove::with_sums() const {
  layout::Placements placements = now_->placements;
  for (int64_t axis : left_) {
    placements[axis] = layout::Partial();
  }
  return now_.with(placements);
}

std::optional<sums::Scatter> ScatteringMove::scatter_over(const std::vector<int64_t>& axes) {
  const layout::Spec before = now_;
  int64_t dim = -1;
  for (MovePtr move = rest(); move && !move->path.steps.empty(); move = rest()) {
    const reshard::Step& step = move->path.steps.front();
    const bool is_over_axes = std::find(axes.begin(), axes.end(), step.axis) != axes.end();
    if (step.kind != reshard::StepKind::kSlice || !is_over_axes || step.form || (dim >= 0 && step.to.dim != dim)) {
      break;
    }
    dim = step.to.dim;
    now_ = step.after;
  }
  if (dim < 0) {
    return std::nullopt;
  }
  const layout::Mesh& mesh = before->mesh;
  const Range whole = before.local_ranges(ctx_->coord(mesh))[dim];
  sums::Scatter scatter{.dim = dim};
  const layout::JoinedAxes line = layout::join_axes(mesh, axes);
  for (const int64_t rank : line.mesh.line(line.axis, ctx_->coord(line.mesh))) {
    const Range part = now_.local_ranges(*mesh.coord_of(rank))[dim];
    scatter.parts.push_back(part.size() == 0 ? Range{} : Range{part.begin - whole.begin, part.end - whole.begin});
  }
  return scatter;
}

namespace {

// The sums over this rank's nodes.
std::vector<comm::NodeSum> own_sums(const ExactSum& sum, c10::ArrayRef<IValue> args) {
  const rules::ExactCall call{&sum.local, sum.leaf};
  const auto sum_of = [&](int64_t begin, int64_t length) {
    std::vector<IValue> cut(args.begin(), args.end());
    for (const sums::SummedDim& at : sum.node->dims) {
      cut[at.arg] = cut[at.arg].toTensor().narrow(at.dim, begin, length);
    }
    return sum.rule->node(call, cut);
  };
  std::vector<comm::NodeSum> mine;
  for (const NodePlan::Run& run : sum.node->runs) {
    mine.push_back({run.node, sum_of(run.begin, run.length)});
  }
  if (mine.empty()) {
    mine.push_back({{}, sum_of(0, 0)});  // the sizes of a sum of nothing
  }
  return mine;
}

bool is_alone(const at::Tensor& tensor) { return tensor.use_count() == 1 && tensor.storage().use_count() == 1; }

}  // namespace

at::Tensor run_node_sum(comm::RankContext& ctx, const ExactSum& sum, c10::ArrayRef<IValue> args, const char* op) {
  const NodePlan& plan = *sum.node;
  std::vector<comm::NodeSum> mine = own_sums(sum, args);
  const c10::ScalarType dtype = sum.local.outputs.at(0)->dtype;
  if (plan.axes.empty() && mine.size() == 1) {
    return mine[0].sum.to(dtype);
  }
  comm::Caller caller(ctx, op);
  std::vector<int64_t> sizes = mine[0].sum.sizes().vec();
  const at::TensorOptions options = mine[0].sum.options();
  if (plan.runs.empty()) {
    mine.clear();
  }
  for (const NodePlan::Axis& step : plan.axes) {
    const bool may_reuse =
        std::all_of(mine.begin(), mine.end(), [](const comm::NodeSum& node) { return is_alone(node.sum); });
    comm::Merge merge{.plan = step.plan, .sizes = sizes, .options = options, .scatter = step.merging.scatter};
    merge.memory = may_reuse ? comm::Merge::Memory::kReuse : comm::Merge::Memory::kKeep;
    for (comm::NodeSum& node : mine) {
      merge.sums.push_back(node.sum.contiguous());
    }
    const comm::FlightLayouts layouts(ctx, step.merging.from, step.merging.to);
    const layout::Mesh& mesh = sum.local.operands[0]->mesh;
    mine = run_merge(ctx, layout::join_axes(mesh, {step.axis}), op, merge);
    sizes = merge.sizes_at(ctx.axis(mesh, step.axis).rank());
  }
  mine = comm::close_nodes(std::move(mine), plan.root);
  TESSERA_ASSERT(mine.size() == 1, mine.size(), " nodes are left of ", plan.root.str());
  return mine[0].sum.to(dtype);
}

}  // namespace tessera::dtensor
