#include "tessera/dtensor/plan/exact_sum.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/merge/merge_bytes.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Coord;
using layout::Lattice;
using layout::Node;
using layout::Range;
using layout::SpecData;

// The dim of an operand that a factor is, or -1.
int64_t dim_of_factor(const rules::FactorMap& map, size_t operand, int factor) {
  const rules::TensorFactors& dims = map.operands[operand];
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].size() == 1 && dims[d][0] == factor) {
      return static_cast<int64_t>(d);
    }
  }
  return -1;
}

// One summed factor, and the first operand that has it.
struct Summed {
  int factor = 0;
  int64_t extent = 0;
  size_t operand = 0;
  int64_t dim = -1;
  layout::DimLabels labels;
};

class Planner {
 public:
  Planner(comm::RankContext& ctx, const Lattice& lattice, const rules::Call& call, const rules::FactorMap& map,
          const rules::Propagation& decided, ExactSum& sum)
      : ctx_(ctx), lattice_(lattice), call_(call), map_(map), decided_(decided), sum_(sum) {}

  void run(const std::vector<int>& factors) {
    for (int factor : factors) {
      summed_.push_back(find(factor));
    }
    const bool over_samples =
        std::any_of(summed_.begin(), summed_.end(), [](const Summed& s) { return rules::counts_samples(s.labels); });
    over_samples ? plan_samples() : plan_node();
  }

 private:
  Summed find(int factor) const {
    Summed found{.factor = factor,
                 .extent = map_.factors[factor].extent,
                 .labels = rules::labels_of_factor(call_, map_, factor)};
    for (size_t i = 0; i < call_.operands.size() && found.dim < 0; ++i) {
      found.dim = dim_of_factor(map_, i, factor);
      found.operand = i;
    }
    TESSERA_CHECK(found.dim >= 0, "[", rules::describe(call_), "] sums a part of a dim, which has no exact form");
    return found;
  }

  const layout::Mesh& mesh() const { return call_.operands[0].spec->mesh; }

  int64_t leaves_of(const Summed& summed) const {
    if (rules::counts_positions(summed.labels)) {
      return lattice_.sequence;
    }
    return rules::sums_whole_rows(call_) ? 1 : lattice_.feature;
  }

  // The run of the dim at `coord` when the axes in `whole` count as merged.
  Range range_at(const Summed& summed, const std::vector<int64_t>& whole, const Coord& coord) const {
    const SpecData& spec = *decided_.operands[summed.operand];
    layout::Placements placements = spec.placements;
    for (int64_t axis : whole) {
      placements[axis] = layout::Replicate();
    }
    return layout::local_range(spec.mesh, placements, summed.dim, spec.sizes[summed.dim], coord);
  }

  // The leaves that each member of `axis` holds. Throws if a cut is inside a leaf.
  std::vector<Node> members_of(const Summed& summed, int64_t leaves, const std::vector<int64_t>& merged,
                               int64_t axis) const {
    std::vector<Node> members;
    Coord coord = ctx_.coord(mesh());
    for (coord[axis] = 0; coord[axis] < mesh().axis(axis).size; ++coord[axis]) {
      const Range held = range_at(summed, merged, coord);
      TESSERA_CHECK(layout::is_of_whole_leaves(held, summed.extent, leaves), "[", rules::describe(call_),
                    "] numerics exact: ", layout::describe_cut(summed.dim, held, summed.extent, leaves), " of axis ",
                    mesh().axis(axis).name, ", or another lattice (rank ", ctx_.rank, ")");
      members.push_back(layout::leaves_of(held, summed.extent, leaves));
    }
    return members;
  }

  std::vector<int64_t> axes_of(const Summed& summed) const {
    const SpecData& spec = *decided_.operands[summed.operand];
    auto axes = layout::axes_of_dim(spec.mesh, spec.placements, summed.dim);
    std::reverse(axes.begin(), axes.end());
    return axes;
  }

  void plan_node() {
    TESSERA_CHECK(summed_.size() == 1, "[", rules::describe(call_), "] numerics exact: a sum over ", summed_.size(),
                  " dims at once has no exact form here; sum one dim after the other");
    TESSERA_CHECK(sum_.rule->node, "[", rules::describe(call_),
                  "] numerics exact: this operator sums over samples only");
    const Summed& summed = summed_.front();
    auto plan = std::make_unique<NodePlan>();
    const int64_t leaves = leaves_of(summed), leaf = std::max<int64_t>(layout::leaf_length(summed.extent, leaves), 1);
    sum_.leaf = leaf;
    plan->root = {0, (summed.extent + leaf - 1) / leaf};
    add_dims(*plan, summed);
    std::vector<int64_t> merged;
    for (int64_t axis : axes_of(summed)) {
      comm::MergePlan::Nodes nodes;
      for (const Node& held : members_of(summed, leaves, merged, axis)) {
        nodes.push_back(layout::cover(held, plan->root.end));
      }
      plan->axes.push_back({axis, comm::MergePlan(std::move(nodes), plan->root), {}});
      merged.push_back(axis);
    }
    const Range mine = range_at(summed, {}, ctx_.coord(mesh()));
    for (const Node& node : layout::cover(layout::leaves_of(mine, summed.extent, leaves), plan->root.end)) {
      const int64_t begin = node.begin * leaf;
      plan->runs.push_back({node, begin - mine.begin, std::min(node.end * leaf, summed.extent) - begin});
    }
    sum_.node = std::move(plan);
  }

  void add_dims(NodePlan& plan, const Summed& summed) const {
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const int64_t dim = dim_of_factor(map_, i, summed.factor);
      if (dim >= 0) {
        plan.dims.push_back({call_.operands[i].arg, dim});
      }
    }
  }

  static int64_t extent_of(layout::DimLabels::const_iterator begin, layout::DimLabels::const_iterator end) {
    return std::accumulate(begin, end, int64_t{1},
                           [](int64_t product, const layout::Factor& factor) { return product * factor.extent; });
  }

  // The samples that this rank holds of a dim of [outer, samples, inner].
  Range rows_of(const Summed& batch, int64_t outer, int64_t inner) const {
    const Range rows = range_at(batch, {}, ctx_.coord(mesh()));
    TESSERA_ASSERT(outer == 1 || axes_of(batch).empty(), rules::describe(call_), " cuts dim ", batch.dim);
    TESSERA_CHECK(rows.begin % (outer * inner) == 0 && rows.end % (outer * inner) == 0, "[", rules::describe(call_),
                  "] numerics exact: a cut falls inside a sample");
    return {rows.begin / (outer * inner), rows.end / (outer * inner)};
  }

  // The step's samples, the positions of a sample, and how both lie.
  void plan_samples() {
    TESSERA_CHECK(sum_.rule->sample, "[", rules::describe(call_),
                  "] numerics exact: this operator has no form that sums sample by sample");
    auto plan = std::make_unique<SamplePlan>();
    const Summed* batch = nullptr;
    const Summed* sequence = nullptr;
    for (const Summed& summed : summed_) {
      const bool is_batch = rules::counts_samples(summed.labels);
      const bool is_sequence = !is_batch && !sum_.rule->keeps_whole && rules::counts_positions(summed.labels);
      if (!is_batch && !is_sequence) {  // the places of an image: the rank that has a sample has them all
        TESSERA_ASSERT(axes_of(summed).empty(), rules::describe(call_), " cuts dim ", summed.dim);
        continue;
      }
      const Summed*& slot = is_batch ? batch : sequence;
      TESSERA_CHECK(!slot, "[", rules::describe(call_), "] numerics exact: ", is_batch ? "samples" : "positions",
                    " stand in two dims, which have no order");
      slot = &summed;
    }
    const layout::DimLabels& factors = batch->labels;
    const auto is_batch = [](const layout::Factor& factor) { return factor.label == layout::Label::kBatch; };
    const auto found = std::find_if(factors.begin(), factors.end(), is_batch);
    TESSERA_CHECK(std::count_if(factors.begin(), factors.end(), is_batch) == 1, "[", rules::describe(call_),
                  "] numerics exact: the samples of dim ", batch->dim, " of operand ", batch->operand,
                  " stand in groups, which have no order. Keep them in one dim that is not split.");
    const layout::Factor& samples = *found;
    const int64_t outer = extent_of(factors.begin(), found), inner = extent_of(found + 1, factors.end());
    const int64_t positions = sequence ? sequence->extent : outer * inner;
    TESSERA_CHECK(!sequence || outer * inner == 1, "[", rules::describe(call_),
                  "] numerics exact: positions stand in two dims");

    TokenLeaves& leaves = plan->leaves;
    leaves.samples = samples.total;
    leaves.sample_leaf = std::max<int64_t>(layout::leaf_length(samples.total, lattice_.batch), 1);
    const int64_t position_leaf = std::max<int64_t>(layout::leaf_length(positions, lattice_.sequence), 1);
    leaves.sequence_leaves = std::max<int64_t>((positions + position_leaf - 1) / position_leaf, 1);
    leaves.root = {0, (samples.total + leaves.sample_leaf - 1) / leaves.sample_leaf * leaves.sequence_leaves};

    plan->rows = rows_of(*batch, outer, inner);
    plan->micro_batch = samples.extent;
    plan->outer = outer;
    plan->positions = sequence ? 1 : positions;
    const Range mine = sequence ? range_at(*sequence, {}, ctx_.coord(mesh())) : Range{0, positions};
    if (sequence) {
      for (int64_t axis : axes_of(*sequence)) {
        members_of(*sequence, lattice_.sequence, plan->merge_axes, axis), plan->merge_axes.push_back(axis);
      }
    }
    for (int64_t axis : axes_of(*batch)) {
      plan->merge_axes.push_back(axis);
    }
    for (int64_t begin = mine.begin; begin < mine.end; begin += position_leaf) {
      plan->pieces.push_back(
          {begin / position_leaf, begin - mine.begin, std::min(begin + position_leaf, mine.end) - begin});
    }
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const int64_t row_dim = dim_of_factor(map_, i, batch->factor);
      if (row_dim >= 0) {
        plan->operands.push_back(
            {call_.operands[i].arg, row_dim, sequence ? dim_of_factor(map_, i, sequence->factor) : -1});
      }
    }
    plan->terms = decided_.outputs[0].with(without_partial(decided_.outputs[0]->placements));
    sum_.sample = std::move(plan);
  }

  comm::RankContext& ctx_;
  const Lattice& lattice_;
  const rules::Call& call_;
  const rules::FactorMap& map_;
  const rules::Propagation& decided_;
  ExactSum& sum_;
  std::vector<Summed> summed_;
};

bool has_sum(const SpecData& spec) {
  using enum layout::ReduceOp;
  return spec.is_merged_by({kSum, kProd, kAvg});
}

}  // namespace

Range TokenLeaves::samples_of(int64_t leaf) const {
  return {leaf * sample_leaf, std::min((leaf + 1) * sample_leaf, samples)};
}

std::unique_ptr<ExactSum> plan_exact_sum(comm::RankContext& ctx, const Lattice& lattice, const rules::Call& call,
                                         const rules::ExactRule& rule, const rules::FactorMap& map,
                                         const rules::Propagation& decided) {
  const bool is_float = c10::isFloatingType(decided.outputs.empty() ? at::kLong : decided.outputs[0]->dtype);
  if (!is_float || (!rule.node && !rule.sample)) {
    for (const layout::Spec& output : decided.outputs) {
      TESSERA_CHECK(!has_sum(*output) || rule.adds_zeros || !c10::isFloatingType(output->dtype), "[",
                    rules::describe(call),
                    "] numerics exact: this operator would leave a sum over ranks in no fixed order. Gather the "
                    "operand first, or use numerics fast.");
    }
    return nullptr;
  }
  const std::vector<int> factors = rules::summed_factors(call, map, 0);
  const bool of_samples = std::any_of(factors.begin(), factors.end(), [&](int factor) {
    return rules::counts_samples(rules::labels_of_factor(call, map, factor));
  });
  if (factors.empty() || (rule.keeps_whole && !of_samples)) {
    return nullptr;
  }
  auto sum = std::make_unique<ExactSum>();
  sum->rule = &rule;
  Planner(ctx, lattice, call, map, decided, *sum).run(factors);
  return sum;
}

std::vector<comm::NodeSum> run_merge(comm::RankContext& ctx, const layout::Mesh& mesh, int64_t axis, const char* op,
                                     const comm::Merge& merge) {
  comm::Communicator& group = ctx.axis(mesh, axis);
  ctx.ledger.record("exact_merge", mesh.axis(axis).name, op, comm::bytes_sent(merge, group.rank()));
  return group.merge(merge);
}

Merging ScatteringMove::next(int64_t axis) {
  Merging merging;
  merging.from = with_sums();
  std::erase(left_, axis);
  merging.scatter = scatter_over(axis);
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

std::optional<comm::Merge::Scatter> ScatteringMove::scatter_over(int64_t axis) {
  const MovePtr move = rest();
  if (!move || move->path.steps.empty()) {
    return std::nullopt;
  }
  const reshard::Step& step = move->path.steps.front();
  if (step.kind != reshard::StepKind::kSlice || step.axis != axis || !step.blocks.empty()) {
    return std::nullopt;
  }
  const int64_t dim = step.to.dim;
  Coord coord = ctx_.coord(step.before->mesh);
  const Range whole = step.before.local_ranges(coord)[dim];
  comm::Merge::Scatter scatter{.dim = dim};
  for (coord[axis] = 0; coord[axis] < step.before->mesh.axis(axis).size; ++coord[axis]) {
    const Range part = step.after.local_ranges(coord)[dim];
    scatter.parts.push_back(part.size() == 0 ? Range{} : Range{part.begin - whole.begin, part.end - whole.begin});
  }
  now_ = step.after;
  return scatter;
}

namespace {

// The sums over this rank's nodes.
std::vector<comm::NodeSum> own_sums(const ExactSum& sum, c10::ArrayRef<IValue> args) {
  const rules::ExactCall call{&sum.local, sum.leaf};
  const auto sum_of = [&](int64_t begin, int64_t length) {
    std::vector<IValue> cut(args.begin(), args.end());
    for (const SummedDim& at : sum.node->dims) {
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
  if (plan.axes.empty() && mine.size() == 1) {
    return mine[0].sum;
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
    mine = run_merge(ctx, sum.local.operands[0]->mesh, step.axis, op, merge);
    sizes = merge.sizes_at(ctx.axis(sum.local.operands[0]->mesh, step.axis).rank());
  }
  mine = comm::close_nodes(std::move(mine), plan.root);
  TESSERA_ASSERT(mine.size() == 1, mine.size(), " nodes are left of ", plan.root.str());
  return mine[0].sum;
}

}  // namespace tessera::dtensor
