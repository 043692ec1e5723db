#include "tessera/rules/exact/sum_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::rules {

namespace {

using layout::Coord;
using layout::Range;
using layout::SpecData;
using sums::Lattice;
using sums::Node;
using sums::NodePlan;
using sums::SamplePlan;

// The dim of an operand that a factor is, or -1.
int64_t dim_of_factor(const FactorMap& map, size_t operand, int factor) {
  const TensorFactors& dims = map.operands[operand];
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

class SumPlanner {
 public:
  SumPlanner(int64_t rank, const Lattice& lattice, const Call& call, const FactorMap& map, const Propagation& decided,
             ExactSum& sum)
      : rank_(rank), lattice_(lattice), call_(call), map_(map), decided_(decided), sum_(sum) {}

  void run(const std::vector<int>& factors) {
    for (int factor : factors) {
      summed_.push_back(find(factor));
    }
    const bool over_samples =
        std::any_of(summed_.begin(), summed_.end(), [](const Summed& s) { return counts_samples(s.labels); });
    over_samples ? plan_samples() : plan_node();
  }

 private:
  Summed find(int factor) const {
    Summed found{
        .factor = factor, .extent = map_.factors[factor].extent, .labels = labels_of_factor(call_, map_, factor)};
    for (size_t i = 0; i < call_.operands.size() && found.dim < 0; ++i) {
      found.dim = dim_of_factor(map_, i, factor);
      found.operand = i;
    }
    TESSERA_CHECK(found.dim >= 0, "[", describe(call_), "] sums a part of a dim, which has no exact form");
    return found;
  }

  const layout::Mesh& mesh() const { return call_.operands[0].spec->mesh; }

  Coord own_coord() const {
    const std::optional<Coord> found = mesh().coord_of(rank_);
    TESSERA_ASSERT(found, "rank ", rank_, " is not on mesh {", mesh().str(), "}");
    return *found;
  }

  int64_t leaves_of(const Summed& summed) const {
    if (counts_positions(summed.labels)) {
      return lattice_.sequence;
    }
    return sums_whole_rows(call_) ? 1 : lattice_.feature;
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
    Coord coord = own_coord();
    for (coord[axis] = 0; coord[axis] < mesh().axis(axis).size; ++coord[axis]) {
      const Range held = range_at(summed, merged, coord);
      TESSERA_CHECK(sums::is_of_whole_leaves(held, summed.extent, leaves), "[", describe(call_),
                    "] numerics exact: ", sums::describe_cut(summed.dim, held, summed.extent, leaves), " of axis ",
                    mesh().axis(axis).name, ", or another lattice (rank ", rank_, ")");
      members.push_back(sums::leaves_of(held, summed.extent, leaves));
    }
    return members;
  }

  std::vector<int64_t> axes_of(const Summed& summed) const {
    const SpecData& spec = *decided_.operands[summed.operand];
    auto axes = layout::axes_of_dim(spec.mesh, spec.placements, summed.dim);
    std::reverse(axes.begin(), axes.end());
    return axes;
  }

  // Of several dims the first is the tree's; a leaf has all elements of the others, which keep_whole() keeps whole.
  void plan_node() {
    TESSERA_CHECK(sum_.rule->node, "[", describe(call_), "] numerics exact: this operator sums over samples only");
    const Summed& summed = summed_.front();
    auto plan = std::make_unique<NodePlan>();
    const int64_t leaves = leaves_of(summed);
    sum_.leaf = sums::leaf_unit(summed.extent, leaves);
    for (auto inner = summed_.begin() + 1; inner != summed_.end(); ++inner) {
      TESSERA_ASSERT(axes_of(*inner).empty(), describe(call_), " cuts dim ", inner->dim);
      sum_.leaf *= inner->extent;
    }
    plan->root = sums::root_of(summed.extent, leaves);
    add_dims(*plan, summed);
    std::vector<int64_t> merged;
    for (int64_t axis : axes_of(summed)) {
      plan->axes.push_back({axis, sums::plan_merge(members_of(summed, leaves, merged, axis), plan->root), {}});
      merged.push_back(axis);
    }
    plan->runs = sums::runs_of(range_at(summed, {}, own_coord()), summed.extent, leaves);
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
    const Range rows = range_at(batch, {}, own_coord());
    TESSERA_ASSERT(outer == 1 || axes_of(batch).empty(), describe(call_), " cuts dim ", batch.dim);
    TESSERA_CHECK(rows.begin % (outer * inner) == 0 && rows.end % (outer * inner) == 0, "[", describe(call_),
                  "] numerics exact: a cut falls inside a sample");
    return {rows.begin / (outer * inner), rows.end / (outer * inner)};
  }

  // The step's samples, the positions of a sample, and how both lie.
  void plan_samples() {
    TESSERA_CHECK(sum_.rule->sample, "[", describe(call_),
                  "] numerics exact: this operator has no form that sums sample by sample");
    auto plan = std::make_unique<SamplePlan>();
    const Summed* batch = nullptr;
    const Summed* sequence = nullptr;
    for (const Summed& summed : summed_) {
      const bool is_batch = counts_samples(summed.labels);
      const bool is_sequence = !is_batch && !sum_.rule->keeps_whole && counts_positions(summed.labels);
      if (!is_batch && !is_sequence) {  // the places of an image: the rank that has a sample has them all
        TESSERA_ASSERT(axes_of(summed).empty(), describe(call_), " cuts dim ", summed.dim);
        continue;
      }
      const Summed*& slot = is_batch ? batch : sequence;
      TESSERA_CHECK(!slot, "[", describe(call_), "] numerics exact: ", is_batch ? "samples" : "positions",
                    " stand in two dims, which have no order");
      slot = &summed;
    }
    const layout::DimLabels& factors = batch->labels;
    const auto is_batch = [](const layout::Factor& factor) { return factor.label == layout::Label::kBatch; };
    const auto found = std::find_if(factors.begin(), factors.end(), is_batch);
    TESSERA_CHECK(std::count_if(factors.begin(), factors.end(), is_batch) == 1, "[", describe(call_),
                  "] numerics exact: the samples of dim ", batch->dim, " of operand ", batch->operand,
                  " stand in groups, which have no order. Keep them in one dim that is not split.");
    const layout::Factor& samples = *found;
    const int64_t outer = extent_of(factors.begin(), found), inner = extent_of(found + 1, factors.end());
    const int64_t positions = sequence ? sequence->extent : outer * inner;
    TESSERA_CHECK(!sequence || outer * inner == 1, "[", describe(call_),
                  "] numerics exact: positions stand in two dims");

    plan->leaves = sums::TokenLeaves::of(samples.total, positions, lattice_);
    plan->samples = {decided_.operands[batch->operand], batch->dim};
    plan->rows = rows_of(*batch, outer, inner);
    plan->micro_batch = samples.extent;
    plan->outer = outer;
    plan->positions = sequence ? 1 : positions;
    const Range mine = sequence ? range_at(*sequence, {}, own_coord()) : Range{0, positions};
    if (sequence) {
      plan->sequence = {decided_.operands[sequence->operand], sequence->dim};
      for (int64_t axis : axes_of(*sequence)) {
        members_of(*sequence, lattice_.sequence, plan->merge_axes, axis), plan->merge_axes.push_back(axis);
      }
    }
    for (int64_t axis : axes_of(*batch)) {
      plan->merge_axes.push_back(axis);
    }
    plan->pieces = sums::pieces_of(mine, positions, lattice_.sequence);
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const int64_t row_dim = dim_of_factor(map_, i, batch->factor);
      if (row_dim >= 0) {
        plan->operands.push_back(
            {call_.operands[i].arg, row_dim, sequence ? dim_of_factor(map_, i, sequence->factor) : -1});
      }
    }
    const layout::Spec& output = decided_.outputs[0];
    plan->terms = with_dtype(output.with(without_partial(output->placements)), sum_dtype(output->dtype));
    sum_.sample = std::move(plan);
  }

  const int64_t rank_;
  const Lattice& lattice_;
  const Call& call_;
  const FactorMap& map_;
  const Propagation& decided_;
  ExactSum& sum_;
  std::vector<Summed> summed_;
};

bool has_sum(const SpecData& spec) {
  using enum layout::ReduceOp;
  return spec.is_merged_by({kSum, kProd, kAvg});
}

}  // namespace

std::unique_ptr<ExactSum> plan_exact_sum(int64_t rank, const Lattice& lattice, const Call& call, const ExactRule& rule,
                                         const FactorMap& map, const Propagation& decided) {
  const bool is_float = c10::isFloatingType(decided.outputs.empty() ? at::kLong : decided.outputs[0]->dtype);
  if (!is_float || (!rule.node && !rule.sample)) {
    for (const layout::Spec& output : decided.outputs) {
      TESSERA_CHECK(!has_sum(*output) || rule.adds_zeros || !c10::isFloatingType(output->dtype), "[", describe(call),
                    "] numerics exact: this operator would leave a sum over ranks in no fixed order. Gather the "
                    "operand first, or use numerics fast.");
    }
    return nullptr;
  }
  const std::vector<int> factors = summed_factors(call, map, 0);
  const bool of_samples = std::any_of(factors.begin(), factors.end(),
                                      [&](int factor) { return counts_samples(labels_of_factor(call, map, factor)); });
  if (factors.empty() || (rule.keeps_whole && !of_samples)) {
    return nullptr;
  }
  auto sum = std::make_unique<ExactSum>();
  sum->rule = &rule;
  SumPlanner(rank, lattice, call, map, decided, *sum).run(factors);
  return sum;
}

}  // namespace tessera::rules
