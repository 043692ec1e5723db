#include "tessera/dtensor/exact/exact_plan.h"

#include <torch/csrc/autograd/function.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/exact/exact_loss.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/rules/exact/exact.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::dtensor {

using layout::Placements;

namespace {

// Where a sum should lie: as the forward operand of the same sizes, if there is one. A micro-batch may have the sizes
// of a parameter by chance. What belongs to samples stays On where it is made, however many operators there have a
// share of it.
std::optional<Placements> forward_layout(const CallPlan* forward, const Spec& output) {
  if (!forward) {
    return std::nullopt;
  }
  for (const Spec& operand : forward->operands) {
    const bool holds_samples = rules::holds_samples(output->labels);
    if (operand->sizes == output->sizes && rules::holds_samples(operand->labels) == holds_samples) {
      Placements wanted = without_partial(operand->placements);
      for (size_t axis = 0; axis < wanted.size() && holds_samples; ++axis) {
        const bool is_on = wanted[axis].is_on() || output->placements[axis].is_on();
        wanted[axis] = !is_on                                  ? wanted[axis]
                       : output->placements[axis].is_partial() ? layout::Replicate()
                                                               : output->placements[axis];
      }
      return wanted;
    }
  }
  return std::nullopt;
}

// What is added up on the way to a stage is not merged before.
Spec with_sums_handed_on(const CallPlan::Output& output) {
  Placements placements = output.final_spec->placements;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const bool goes = output.hand_on->from->placements[axis] != output.hand_on->to->placements[axis];
    placements[axis] = goes ? output.spec->placements[axis] : placements[axis];
  }
  return output.final_spec.with(placements);
}

// Whether a tensor with these labels holds some of the step's samples.
bool holds_some_samples(const layout::Labels& labels) {
  return std::any_of(labels.begin(), labels.end(), [](const layout::DimLabels& dim) {
    return std::any_of(dim.begin(), dim.end(), [](const layout::Factor& factor) {
      return factor.label == layout::Label::kBatch && factor.extent != factor.total;
    });
  });
}

}  // namespace

const rules::ExactRule* exact_rule_of(const RankState& state, const OpInfo& info, const rules::Call& call) {
  if (const rules::ExactRule* loss = find_exact_loss(info, call)) {
    return loss;
  }
  const rules::ExactRule* rule = info.exact;
  TESSERA_CHECK(rule && (!rule->accepts || rule->accepts(call)), "[", rules::describe(call),
                "] numerics exact: ", info.name, rule ? " called like this" : "",
                " has no form whose bits do not depend on the layout (rank ", state.ctx.rank,
                "). Compute it on full_tensor(x), or use numerics fast.");
  const bool is_complex = std::any_of(call.operands.begin(), call.operands.end(), [](const rules::Operand& operand) {
    return c10::isComplexType(operand.spec->dtype);
  });
  TESSERA_CHECK(!is_complex || rule->moves, "[", rules::describe(call), "] numerics exact: ", info.name,
                " has no exact form for complex numbers (rank ", state.ctx.rank,
                "); accepted: float32 and float64. Compute with real and imaginary parts, or use numerics fast.");
  return rules::reads_narrow(call) ? &rules::narrow_form(*rule, call) : rule;
}

std::unique_ptr<PerSample> restrict_cuts(const RankState& state, const rules::ExactRule& rule, const rules::Call& call,
                                         rules::FactorMap& map) {
  rules::keep_whole(rule, call, *state.exact.lattice(), map);
  return rule.per_sample && rule.per_sample(call) ? plan_per_sample(call, map) : nullptr;
}

void plan_exact(RankState& state, const OpInfo& info, const rules::Call& call, const rules::ExactRule& rule,
                const rules::FactorMap& map, const rules::Propagation& decided, const CallPlan* forward,
                CallPlan& plan) {
  plan.exact = rules::plan_exact_sum(state.ctx.rank, *state.exact.lattice(), call, rule, map, decided);
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    CallPlan::Output& output = plan.outputs[i];
    if (!output.spec->has_partial) {
      continue;
    }
    const Spec merged = output.spec.with(without_partial(output.spec->placements));
    NodePlan* node = i == 0 && plan.exact ? plan.exact->node.get() : nullptr;
    if (output.final_spec == output.spec) {
      const auto wished = forward_layout(forward, output.spec);
      output.final_spec = wished ? merged.with(*wished) : merged;
      if (output.hand_on && !node) {
        output.final_spec = with_sums_handed_on(output);
      }
    }
    if (plan.exact && i == 0) {
      output.spec = merged;
    }
    std::vector<int64_t> axes;
    if (node) {
      std::transform(node->axes.begin(), node->axes.end(), std::back_inserter(axes),
                     [](const NodePlan::Axis& axis) { return axis.axis; });
    }
    ScatteringMove way(state.ctx, state.engine.moves, output.spec, output.final_spec, std::move(axes));
    if (node) {
      for (NodePlan::Axis& axis : node->axes) {
        axis.merging = way.next({axis.axis});
      }
    }
    output.spec = way.now();
    output.move = way.rest();
  }
  if (!plan.exact) {
    return;
  }
  plan.exact->local = make_local_call(info, decided, state.ctx.coord(call.operands.at(0).spec->mesh));
  if (!plan.exact->sample) {
    return;
  }
  CallPlan::Output& output = plan.outputs.at(0);
  if (const auto wished = forward_layout(forward, output.spec)) {
    output.final_spec = output.spec.with(*wished);
  }
  output.move = nullptr;
}

namespace {

// A sum of a gradient that was made from samples of a micro-batch, of which nobody knows any more which.
bool lost_samples(const Meta& meta) {
  return !meta.is_pending() && meta.origin && c10::isFloatingType(meta.spec->dtype) &&
         !rules::holds_samples(meta.spec->labels);
}

// Such sums of several micro-batches would be added one micro-batch after the other.
void check_samples_known(const RankState& state, const OpInfo& info, const Meta& left, const Meta& right) {
  const bool of_gradients = torch::autograd::get_current_node() || state.pass.means().in_job;
  const bool is_cut = lost_samples(left) ? lost_samples(right) ? left.origin != right.origin
                                                               : right.is_pending() && is_unfinished(right)
                                         : lost_samples(right) && left.is_pending() && is_unfinished(left);
  TESSERA_CHECK(
      !of_gradients || !is_cut, "[", info.name, " ", left.spec.str(), " + ", right.spec.str(),
      "] numerics exact: a gradient lost its samples, so what the step's "
      "micro-batches give would be added in an order that depends on them (rank ",
      state.ctx.rank,
      "): rows were taken from several samples at once, as by "
      "x[ids] of a batch. Take them inside each sample (x.gather(1, ids)), or use one micro-batch (accumulate = 1).");
}

}  // namespace

void check_samples_apart(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (info.row.carry != rules::Carry::kAdd) {
    return;
  }
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!is_dtensor(a) || !is_dtensor(b) || a.sizes() != b.sizes()) {
    return;
  }
  const Meta &left = *meta_of(a), &right = *meta_of(b);
  const auto has_part = [](const Meta& meta) { return !meta.is_pending() && holds_some_samples(meta.spec->labels); };
  const bool is_mixed = has_part(left) ? has_part(right) ? left.origin != right.origin : right.is_pending()
                                       : has_part(right) && left.is_pending();
  TESSERA_CHECK(!is_mixed, "[", info.name, " ", left.spec.str(), " + ", right.spec.str(),
                "] numerics exact: values of single samples of two micro-batches would be "
                "added, not in the order of the samples (rank ",
                state.ctx.rank,
                "). If this is a gradient, its parameter has a dim of one element where a "
                "micro-batch of one sample has its samples: leave that dim out of the parameter, or use micro-batches "
                "of two samples or more.");
  check_samples_known(state, info, left, right);
}

}  // namespace tessera::dtensor
