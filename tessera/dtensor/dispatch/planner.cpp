#include "tessera/dtensor/dispatch/planner.h"

#include <numeric>

#include <ATen/TensorIterator.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/dispatch/executors.h"
#include "tessera/dtensor/dispatch/rule_call.h"
#include "tessera/dtensor/exact/exact_plan.h"
#include "tessera/dtensor/plan/call_shapes.h"
#include "tessera/dtensor/plan/wishes.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/layout/vocabulary.h"
#include "tessera/rules/engine/homes.h"
#include "tessera/rules/engine/propagate.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Placements;

bool writes_plain(const rules::Call& call) {
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [](const rules::Operand& operand) { return operand.is_written && operand.is_plain; });
}

// Whether no result is something that the call writes.
bool returns_new(const OpInfo& info) {
  return std::all_of(info.written_return.begin(), info.written_return.end(), [](int arg) { return arg < 0; });
}

// Rewrites the arguments that carry sizes of the result to this rank's sizes.
void rewrite_sizes(const rules::FactorMap& map, const layout::Coord& coord, CallPlan& plan) {
  for (const rules::SizeArg& size : map.sizes) {
    const auto local = plan.outputs.at(size.output).spec.local_sizes(coord);
    if (size.dim < 0) {
      plan.rewritten.emplace_back(size.arg, c10::List<int64_t>(local));
    } else {
      plan.rewritten.emplace_back(size.arg, local.at(size.dim));
    }
  }
}

// Whether a tensor of these sizes has these factors.
bool has_sizes(const rules::FactorMap& map, const rules::TensorFactors& tensor, c10::IntArrayRef sizes) {
  return std::equal(tensor.begin(), tensor.end(), sizes.begin(), sizes.end(),
                    [&](const rules::DimFactors& dim, int64_t size) {
                      return std::accumulate(dim.begin(), dim.end(), int64_t{1}, [&](int64_t product, int factor) {
                               return product * map.factors[factor].extent;
                             }) == size;
                    });
}

template <typename Rule>
rules::Decomposition decomposition_of(const Rule& rule, const rules::Call& call) {
  return rule.decompose && (!rule.decompose_when || rule.decompose_when(call)) ? rule.decompose : nullptr;
}

Spec forward_result(const CallPlan* forward) {
  return forward && !forward->outputs.empty() ? forward->outputs.front().spec : Spec();
}

// Makes one plan, part by part.
class Planner {
 public:
  explicit Planner(const Invocation& call)
      : state_(*call.state),
        info_(call.info),
        args_(call.arguments()),
        forward_(call.forward ? call.forward->plan : nullptr),
        has_gathered_(call.flags & kGathered),
        reads_values_(!call.info.is_view && !call.info.row.needs_no_value),
        reads_gathered_(has_gathered_ && reads_values_ && call.reads_gathered()),
        call_(make_call(info_, args_)),
        homes_(call_, derivative_of(call), state_.ctx.walk.stage),
        plan_(std::make_shared<CallPlan>()) {}

  std::shared_ptr<CallPlan> run() {
    read_call();
    if (has_gathered_) {
      show_gathered();
    }
    show_computed();
    const rules::ExactRule* exact = state_.exact.lattice() ? exact_rule_of(state_, info_, call_) : nullptr;
    const rules::Decomposition decomposition =
        exact ? decomposition_of(*exact, call_) : decomposition_of(*info_.rule, call_);
    if (writes_plain(call_) && !(decomposition && returns_new(info_))) {
      return run_whole(exact);
    }
    plan_->decompose = decomposition;
    if (plan_->decompose) {
      check_decomposed();
      return std::move(plan_);
    }

    const bool from_factors = info_.rule->shape == rules::ShapeSource::kFactors;
    if (!from_factors) {
      infer_outputs(info_, call_, *plan_, defined_);
    }
    wants_ = forward_ || info_.is_view ? nullptr : wanting_parameter(args_);
    wish_input();
    homes_.take_home(call_);
    rules::FactorMap map = info_.rule->map(call_);
    if (map.metadata_only) {
      show_stored();
    }
    const rules::LocalKernel local = exact && exact->local ? exact->local : info_.rule->local;
    const bool is_exact_of_runs = exact && (exact->local || exact->node || exact->per_sample);  // leaves are runs
    map.keeps_runs = is_exact_of_runs || (local && !info_.rule->takes_interleaved);
    if (exact) {
      plan_->per_sample = restrict_cuts(state_, *exact, call_, map);
    }
    if (from_factors) {
      outputs_from_factors(info_, call_, map, *plan_, defined_);
    }
    check_out(map);
    rules::Wishes wishes = wishes_of(call_, forward_);
    homes_.take_home(wishes);
    const rules::Propagation decided = rules::propagate(call_, map, wishes);
    if (!map.metadata_only) {
      add_moves(decided, map.like);
    }
    add_outputs(decided);
    hand_on();
    place_gradients(map.like);
    plan_->makes_parameter_gradient = makes_parameter_gradient();
    plan_->is_absent = !homes_.empty() && !is_here(homes_.outside(call_.spec(0)));
    if (!plan_->is_absent) {
      add_local_call(map, decided, local);
    } else {
      forget_local_moves();
    }
    if (exact) {  // also where it does not run: the results lie as elsewhere, and its sums have the same names
      plan_exact(state_, info_, call_, *exact, map, decided, forward_, *plan_);
      if (plan_->exact && plan_->exact->sample) {
        plan_->exact->sample->terms = homes_.outside(plan_->exact->sample->terms);
      }
    }
    hand_on();  // from where merges leave it
    return std::move(plan_);
  }

 private:
  // Of a call that writes into a plain tensor, of which every rank has its own, all alike: each rank reads the operands
  // whole, and writes the same. Views of the tensor see it, as on one device.
  std::shared_ptr<CallPlan> run_whole(const rules::ExactRule* exact) {
    if (exact) {
      check_exact_whole(*exact);
    }
    rules::Propagation decided;
    for (const rules::Operand& operand : call_.operands) {
      TESSERA_CHECK(operand.is_plain || !operand.is_written || operand.spec->is_replicated, "[", rules::describe(call_),
                    "] writes into a plain tensor "
                    "and into parts of a distributed one (rank ",
                    state_.ctx.rank, "): make all that it writes DTensors, or none.");
      decided.operands.push_back(operand.spec.with(Placements(operand.spec->mesh.ndim())));
    }
    for (int arg : info_.written_return) {
      TESSERA_CHECK(arg >= 0, "[", rules::describe(call_), "] writes into a plain tensor and returns another (rank ",
                    state_.ctx.rank, "): call it on full_tensor(x), or make what it writes a DTensor.");
      const auto written = std::find_if(call_.operands.begin(), call_.operands.end(),
                                        [&](const rules::Operand& operand) { return operand.arg == arg; });
      decided.outputs.push_back(written->spec);
      plan_->list_returns.push_back(-1);
    }
    call_.outputs.resize(decided.outputs.size());
    defined_.resize(decided.outputs.size(), true);
    add_moves(decided);
    add_outputs(decided);
    add_kernel(decided, exact ? exact->local : nullptr);
    return std::move(plan_);
  }

  // Only a kernel that sees elements one by one gives the same for any part of the step's samples.
  void check_exact_whole(const rules::ExactRule& rule) const {
    TESSERA_CHECK(!decomposition_of(rule, call_) && !rule.node && !(rule.per_sample && rule.per_sample(call_)), "[",
                  rules::describe(call_), "] numerics exact: this operator cannot write into a plain tensor (rank ",
                  state_.ctx.rank, "). Compute the value first, and copy_ it.");
  }

  // A decomposition writes the one result that it has; what it writes beside results, it writes itself.
  void check_decomposed() const {
    const auto written =
        std::count_if(info_.written_return.begin(), info_.written_return.end(), [](int arg) { return arg >= 0; });
    TESSERA_CHECK(written <= 1, "[", rules::describe(call_),
                  "] is computed by other operators here, which would leave its ", written,
                  " out= arguments as they are (rank ", state_.ctx.rank,
                  "). Call it without out=, and copy_ the results.");
  }

  // What is written in place has the size of the result, and so has an out= argument. A rule that is given more
  // operands than it knows may take that for another.
  void check_out(const rules::FactorMap& map) const {
    const char* instead = "). Call it without out=, and copy_ the result.";
    for (const rules::Output& output : call_.outputs) {
      if (output.written_operand < 0) {
        continue;
      }
      const rules::Operand& operand = call_.operands.at(output.written_operand);
      if (!info_.op.schema().arguments().at(operand.arg).is_out()) {
        TESSERA_CHECK(output.sizes == operand.spec->sizes, "[", rules::describe(call_), "] gives ",
                      c10::IntArrayRef(output.sizes), ", which does not fit into ", operand.spec.str(), " (rank ",
                      state_.ctx.rank, "). Call the operator that returns a new tensor.");
        continue;
      }
      TESSERA_CHECK(output.sizes == operand.spec->sizes, "[", rules::describe(call_), "] gives ",
                    c10::IntArrayRef(output.sizes), ", and out= is ", operand.spec.str(),
                    ", which is not resized (rank ", state_.ctx.rank, instead);
      const auto index = static_cast<size_t>(output.written_operand);
      TESSERA_CHECK(index >= map.operands.size() || has_sizes(map, map.operands[index], output.sizes), "[",
                    rules::describe(call_),
                    "] cannot write into out=: its rule "
                    "speaks of new results only (rank ",
                    state_.ctx.rank, instead);
    }
  }

  void read_call() {
    TESSERA_CHECK(info_.rule, "[", rules::describe(call_),
                  "] this operator has no sharding rule, so tessera cannot say what a distributed "
                  "result would be (rank ",
                  state_.ctx.rank, "). Call it on full_tensor(x), or add a rule (docs/adding.md).");
    plan_->operands.reserve(call_.operands.size());
    for (const rules::Operand& operand : call_.operands) {
      plan_->operands.push_back(operand.spec);
      plan_->operand_is_parameter.push_back(operand.is_parameter);
      plan_->is_long |= operand.spec->numel() > at::internal::GRAIN_SIZE;
    }
    plan_->program_key = adds_gradients() ? sum_key_of(call_) : program_key_of(call_);
    homes_.take_home(call_);
  }

  // Whether the call runs on this rank. What is a view of a parameter is one in the walks of all of the rank's stages,
  // as the parameter is: each may read it.
  bool is_here(const Spec& home) const {
    return info_.is_view && call_.operands[0].is_parameter ? home->holds(coord()) : state_.has_part(home);
  }

  // A gradient that is made of sizes alone (`zeros_like`) is made where those are.
  std::optional<rules::Homes::Derivative> derivative_of(const Invocation& call) const {
    return call.is_in_derivative() && !call.info.row.needs_no_value
               ? std::optional(rules::Homes::Derivative{forward_result(forward_), adds_gradients()})
               : std::nullopt;
  }

  // Gradients of one tensor meet in another order where a rank goes past a module (Note [Gradients that meet]).
  bool adds_gradients() const { return forward_ && info_.row.carry == rules::Carry::kAdd && !info_.writes; }

  // The activation that meets a parameter lies as the plan wants.
  void wish_input() {
    if (!wants_ || !wants_->input) {
      return;
    }
    const auto activation =
        std::find_if(call_.operands.begin(), call_.operands.end(),
                     [&](const rules::Operand& operand) { return !operand.is_parameter && !operand.is_plain; });
    if (activation != call_.operands.end()) {
      activation->spec = with_wish(activation->spec, *wants_->input);
    }
  }

  // The rule sees parameters as the plan says that they are read; views, and what reads no values, only note how that
  // is.
  void show_gathered() {
    plan_->gathers.resize(call_.operands.size());
    size_t operand = 0;
    for_each_tensor(args_, [&](const at::Tensor& tensor, int, int) {
      rules::Operand& shown = call_.operands[operand];
      const GatherPolicy* policy =
          shown.is_parameter && !shown.is_written ? meta_of(tensor)->parameter->gather : nullptr;
      plan_->gathers[operand++] = policy;
      if (policy && reads_gathered_) {
        shown.spec = read_spec(shown.spec, *policy);
        plan_->computed_in = policy->dtype ? policy->dtype : plan_->computed_in;
      }
    });
  }

  // What an operator reads beside a parameter that the plan has it read in a dtype, and what its derivative reads
  // beside a gradient of that dtype. What a derivative adds to stays as it is, and the others follow it.
  void show_computed() {
    if (forward_ && !plan_->computed_in) {
      plan_->computed_in = forward_->computed_in;
    }
    const bool is_met = std::any_of(call_.operands.begin(), call_.operands.end(), [&](const rules::Operand& operand) {
      return operand.spec->dtype == plan_->computed_in;
    });
    if (!plan_->computed_in || !reads_values_ || !is_met) {
      return;
    }
    const auto written = std::find_if(call_.operands.begin(), call_.operands.end(),
                                      [](const rules::Operand& operand) { return operand.is_written; });
    const auto dtype = written == call_.operands.end() ? *plan_->computed_in : written->spec->dtype;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      rules::Operand& operand = call_.operands[i];
      const bool follows = !operand.is_plain && !operand.is_written && !plan_->gather_of(i);
      if (follows && c10::isFloatingType(operand.spec->dtype)) {
        operand.spec = operand.spec.with_dtype(dtype);
      }
    }
  }

  // ... or as they are stored, where it looks at sizes and layouts only.
  void show_stored() {
    for (size_t i = 0; i < plan_->gathers.size(); ++i) {
      call_.operands[i].spec = plan_->gathers[i] ? plan_->operands[i] : call_.operands[i].spec;
    }
    plan_->gathers.clear();
  }

  void add_moves(const rules::Propagation& decided, int like = -1) {
    size_t operand = 0;
    for_each_tensor(args_, [&](const at::Tensor&, int arg, int item) {
      const size_t index = operand++;
      const Spec from = plan_->operands[index];
      const bool is_plain = call_.operands.at(index).is_plain;
      const Spec to = is_plain ? decided.operands[index] : homes_.outside(decided.operands[index]);
      const bool stays = from == to || (from->placements == to->placements && from->dtype == to->dtype);
      if (!stays && static_cast<int>(index) != like) {
        const Spec wanted = from.with(to->placements).with_dtype(to->dtype);
        const GatherPolicy* policy = plan_->gather_of(index);
        const Spec there = from.with(homes_.sent(from->placements, to->placements));
        const bool gathers = policy && wanted == read_spec(there, *policy);
        const bool sends = there != from;
        plan_->moves.push_back(
            {arg, item, state_.engine.moves.find_or_plan(from, wanted), gathers, sends ? there : Spec()});
      }
    });
  }

  // Where nothing runs, only what others wait for has to be done. Those who gather a parameter have it.
  void forget_local_moves() {
    std::erase_if(plan_->moves, [&](const CallPlan::OperandMove& action) {
      return (action.gathers_parameter && !action.there) || homes_.leaves(action.move->from) ||
             (!action.move->communicates && !action.move->from->has_partial);
    });
  }

  // How the plan wants it; what is handed on to a stage stays on that axis as it is until then.
  Placements wanted_of(const Spec& made) const {
    Placements wants = *wants_->output;
    const Spec to = homes_.handed_on(made);
    for (size_t axis = 0; axis < wants.size(); ++axis) {
      wants[axis] = to->placements[axis] == made->placements[axis] ? wants[axis] : made->placements[axis];
    }
    return wants;
  }

  // What is made for a stage where all take part goes there at once, when it lies on other axes as it will: rows of a
  // table to the first one, the gradient of what the head read to where that was made.
  void hand_on() {
    for (size_t i = 0; i < plan_->outputs.size(); ++i) {
      CallPlan::Output& output = plan_->outputs[i];
      const Spec to = forward_ ? given_back(output.final_spec) : homes_.handed_on(output.final_spec);
      if (call_.outputs[i].written_operand < 0) {
        output.hand_on = to == output.final_spec ? nullptr : state_.engine.moves.find_or_plan(output.final_spec, to);
      }
    }
  }

  Spec given_back(const Spec& gradient) const {
    const bool has_samples = rules::holds_samples(gradient->labels);
    for (const Spec& operand : forward_->operands) {
      if (operand->sizes != gradient->sizes || rules::holds_samples(operand->labels) != has_samples ||
          operand->mesh != gradient->mesh) {
        continue;
      }
      Placements placements = gradient->placements;
      for (size_t axis = 0; axis < placements.size(); ++axis) {
        const bool is_elsewhere = placements[axis].is_on() && !layout::is_of_vocabulary(placements[axis].stage);
        placements[axis] =
            operand->placements[axis].is_on() && !is_elsewhere ? operand->placements[axis] : placements[axis];
      }
      return gradient.with(placements);
    }
    return gradient;
  }

  // Gradients of parameters that are kept in parts go there as soon as they are computed, where the plan says so. Sums
  // that `exact` merges find their way in plan_exact.
  void place_gradients(int like) {
    for (size_t i = 0; i < plan_->outputs.size(); ++i) {
      CallPlan::Output& output = plan_->outputs[i];
      if (call_.outputs[i].written_operand >= 0 || (state_.exact.lattice() && output.spec->has_partial)) {
        continue;
      }
      const auto [stored, gather] = parameter_of_output(i, like);
      const bool is_left_to_group = gather && gather->is_grouped && !state_.exact.lattice();
      if (gather && !gather->merged.empty() && !is_left_to_group) {
        output.final_spec = merged_gradient(output.final_spec, *stored, *gather);
        output.move = output.final_spec == output.spec
                          ? nullptr
                          : state_.engine.moves.find_or_plan(output.spec, output.final_spec);
      }
    }
  }

  // The gathered parameter whose gradient this output is: where it is stored, and its policy; null: there is none.
  std::pair<const Spec*, const GatherPolicy*> parameter_of_output(size_t output, int like) const {
    if (output == 0 && like >= 0 && plan_->gather_of(static_cast<size_t>(like))) {
      return {&plan_->operands[static_cast<size_t>(like)], plan_->gather_of(static_cast<size_t>(like))};
    }
    const Spec& spec = plan_->outputs[output].spec;
    const bool is_of_parameter = info_.is_view && plan_->gather_of(0);  // `w.t()`, in a derivative of what read w
    if (is_of_parameter || rules::holds_samples(spec->labels)) {
      return {};
    }
    const auto operand = forward_ ? parameter_of_gradient(*forward_, spec->sizes) : std::nullopt;
    return operand ? std::pair(&forward_->operands[*operand], forward_->gather_of(*operand))
                   : std::pair<const Spec*, const GatherPolicy*>();
  }

  // Whether this call of a derivative makes the gradient of a parameter alone, which stays where it is made, on the
  // parameter's stage, and is not taken by a group before its pass ends.
  bool makes_parameter_gradient() const {
    if (!forward_ || info_.writes || info_.is_view || plan_->outputs.size() != 1 || plan_->list_returns.at(0) >= 0) {
      return false;
    }
    const CallPlan::Output& output = plan_->outputs[0];
    const auto [stored, gather] = parameter_of_output(0, /*like=*/-1);
    const auto stays = [&](const Spec& to) {
      return layout::sent_to(output.spec->placements, to->placements) == output.spec->placements;
    };
    return stored && !gather && stays(*stored) && stays(output.final_spec);
  }

  void add_outputs(const rules::Propagation& decided) {
    bool detached = false;
    for (const CallPlan::OperandMove& action : plan_->moves) {
      detached |= info_.is_view && !action.move->keeps_storage && !action.move->from->has_partial;
    }
    plan_->outputs.reserve(decided.outputs.size());
    for (size_t i = 0; i < decided.outputs.size(); ++i) {
      CallPlan::Output output;
      output.spec = output.final_spec = homes_.outside(decided.outputs[i]);
      output.defined = defined_[i];
      output.is_view = call_.outputs[i].is_view;
      output.detached_view = detached;
      if (wants_ && wants_->output && defined_[i]) {
        output.final_spec = homes_.outside(with_wish(decided.outputs[i], wanted_of(decided.outputs[i])));
      }
      if (!(output.final_spec == output.spec)) {
        output.move = state_.engine.moves.find_or_plan(output.spec, output.final_spec);
      }
      plan_->outputs.push_back(std::move(output));
    }
  }

  void add_local_call(const rules::FactorMap& map, const rules::Propagation& decided, rules::LocalKernel local) {
    const layout::Coord& coord = this->coord();
    if (info_.row.reshapes) {
      plan_->reshape = true;
      plan_->local_shape = decided.outputs.at(0).local_sizes(coord);
    } else {
      rewrite_sizes(map, coord, *plan_);
    }
    add_kernel(decided, local);
  }

  void add_kernel(const rules::Propagation& decided, rules::LocalKernel local) {
    plan_->local = local;
    if (local) {
      plan_->local_call = std::make_unique<rules::LocalCall>(make_local_call(info_, decided, coord()));
    }
  }

  const layout::Coord& coord() const { return state_.ctx.coord(call_.operands.at(0).spec->mesh); }

  RankState& state_;
  const OpInfo& info_;
  c10::ArrayRef<IValue> args_;
  const CallPlan* forward_;
  const bool has_gathered_, reads_values_, reads_gathered_;
  rules::Call call_;
  const rules::Homes homes_;
  std::shared_ptr<CallPlan> plan_;
  std::vector<bool> defined_;
  const ParameterInfo* wants_ = nullptr;
};

}  // namespace

CallPlan& plan_of(const Invocation& call) {
  RankState& state = *call.state;
  const uint64_t hash = hash_of(call.scan.key);
  if (CallPlan* known = state.engine.plans().find(call.scan.key, hash); C10_LIKELY(known != nullptr)) {
    return *known;
  }
  std::shared_ptr<CallPlan> made = Planner(call).run();
  made->execute = executor_of(*made);
  state.engine.forward_plans.let_go();
  const uint64_t kind = base::hash_combine(made->program_key, call.forward ? call.forward->plan->program_key : 0);
  return *state.engine.plans().insert(call.scan.key, hash, kind, std::move(made));
}

}  // namespace tessera::dtensor
