#include "tessera/dtensor/dispatch/dispatch.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/view.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/dtensor/dispatch/absent.h"
#include "tessera/dtensor/dispatch/outside_job.h"
#include "tessera/dtensor/dispatch/plain_operands.h"
#include "tessera/dtensor/dispatch/planner.h"
#include "tessera/dtensor/dispatch/scan.h"
#include "tessera/dtensor/exact/carry.h"
#include "tessera/dtensor/exact/exact_plan.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/explicit_mode.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;

// The operand on the layout that the plan wants.
at::Tensor moved(RankState& state, const OpInfo& info, const CallPlan::OperandMove& action, const at::Tensor& tensor) {
  const Move& move = *action.move;
  if (!is_dtensor(tensor)) {
    return run_move(state.ctx, move, tensor, info.name.c_str());
  }
  Meta* meta = meta_of(tensor);
  if (meta->spec == move.to) {
    return meta->local;  // another operand of this call was the same tensor
  }
  if (C10_UNLIKELY(meta->spec != move.from)) {  // ... and was merged to another layout
    return run_move(state.ctx, *state.moves.find_or_plan(meta->spec, move.to), meta->local, info.name.c_str());
  }
  if (move.from->has_partial) {
    // Merged once, however many operators read it: the same logical value stays in the tensor.
    meta->replace(run_move(state.ctx, move, meta->local, info.name.c_str()), move.to);
    drop_unseen_base(*meta);
    return meta->local;
  }
  if (!move.communicates) {
    return run_move(state.ctx, move, meta->local, info.name.c_str());
  }
  if (meta->rare && meta->rare->gathered_spec == move.to && meta->unchanged_since(meta->rare->gathered_at)) {
    return meta->rare->gathered;
  }
  at::Tensor result = run_move(state.ctx, move, meta->local, info.name.c_str());
  Rare& rare = meta->make_rare();
  rare.gathered_spec = move.to;
  rare.gathered = result;
  rare.gathered_at = meta->moment();
  // Of the largest part, so that all ranks drop the same copies.
  const int64_t most = c10::multiply_integers(move.to.local_sizes(layout::Coord(move.to->mesh.ndim())));
  state.gathered.add(MetaPtr::reclaim_copy(meta), most * static_cast<int64_t>(result.element_size()));
  return result;
}

// What lives while one call runs: the tensors that it writes, and what its results are views of.
struct Running {
  RankState& state;
  const OpInfo& info;
  const CallPlan& plan;
  const Origin* origin;
  c10::SmallVector<at::Tensor, 2> written = {};
  MetaPtr base = {};
  bool base_is_inference = false;
  std::optional<std::vector<IValue>> view_args = {};  // of a view that may have to be made again
  bool copied = false;                                // a view whose part had to be copied
  int64_t next_view = 0;
};

void move_operands(Running& run, IValue* args) {
  for (const CallPlan::OperandMove& action : run.plan.moves) {
    IValue& arg = args[action.arg];
    const at::Tensor tensor = action.item < 0 ? arg.toTensor() : arg.toListRef()[action.item].toTensor();
    at::Tensor result = moved(run.state, run.info, action, tensor);
    if (!run.info.args[action.arg].written) {
      replace_tensor(arg, action.item, std::move(result));
    }
  }
}

void unwrap_tensor(Running& run, IValue& arg, bool written) {
  if (written) {
    run.written.push_back(arg.toTensor());
  }
  if (!is_dtensor(arg.toTensor())) {
    return;
  }
  arg = IValue(meta_of(arg.toTensor())->local);
}

void unwrap_list(Running& run, IValue& arg, bool written) {
  if (written) {
    for (const at::Tensor& tensor : arg.toTensorVector()) {
      run.written.push_back(tensor);
    }
  }
  for_each_tensor({arg}, [&](const at::Tensor& tensor, int, int item) {
    if (is_dtensor(tensor)) {
      replace_tensor(arg, item, meta_of(tensor)->local);
    }
  });
}

void call_local(Running& run, Stack& stack) {
  LocalScope scope;
  if (run.plan.is_absent) {
    give_nothing(run.info, run.plan, stack);
  } else if (run.plan.reshape) {
    const at::Tensor local = std::move(stack[stack.size() - run.info.num_args()]).toTensor();
    torch::jit::drop(stack, run.info.num_args());
    at::Tensor result =
        local.is_contiguous() ? local.view(run.plan.local_shape) : at::reshape(local, run.plan.local_shape);
    run.copied = run.info.is_view && !result.is_alias_of(local);
    stack.emplace_back(std::move(result));
  } else if (run.plan.exact) {
    const size_t begin = stack.size() - run.info.num_args();
    at::Tensor sum =
        run_node_sum(run.state.ctx, *run.plan.exact, c10::ArrayRef<IValue>(stack.data() + begin, run.info.num_args()),
                     run.info.name.c_str());
    stack.resize(begin);
    stack.emplace_back(std::move(sum));
  } else if (run.plan.per_sample) {
    run_per_sample(*run.plan.per_sample, run.info, stack);
  } else if (run.plan.local) {
    run.plan.local(*run.plan.local_call, stack);
  } else {
    run.info.op.callBoxed(stack);
  }
}

at::Tensor wrap_output(Running& run, const CallPlan::Output& output, at::Tensor local) {
  if (!local.defined()) {
    return local;
  }
  if (output.move) {
    local = run_move(run.state.ctx, *output.move, local, run.info.name.c_str());
  }
  auto meta = c10::make_intrusive<Meta>();
  meta->local = std::move(local);
  meta->spec = output.final_spec;
  meta->origin = run.origin;
  if (output.is_view && run.base) {
    meta->parameter = run.base->parameter;  // what reads `w.t()` reads the parameter
    run.base->memory().has_views = true;
    if (C10_UNLIKELY(run.view_args.has_value())) {
      record_view(*meta, run.base, run.info, *run.view_args, run.next_view++, !output.detached_view && !run.copied);
    } else {
      meta->root = run.base->root ? run.base->root : run.base;
    }
    return wrap_view(std::move(meta), run.base_is_inference);
  }
  return wrap(std::move(meta));
}

void wrap_results(Running& run, IValue* results) {
  const OpInfo& info = run.info;
  size_t next_output = 0, next_written = 0;
  for (size_t i = 0; i < info.num_returns(); ++i) {
    IValue& result = results[i];
    if (run.plan.list_returns[i] >= 0) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& local : result.toTensorVector()) {
        list.push_back(wrap_output(run, run.plan.outputs[next_output++], local));
      }
      result = std::move(list);
    } else if (info.written_return[i] >= 0) {
      result = std::move(run.written[next_written++]);
      ++next_output;
    } else if (result.isTensor()) {
      result = wrap_output(run, run.plan.outputs[next_output++], std::move(result).toTensor());
    }
  }
}

void check_writes(const OpInfo& info, const IValue* args) {
  for (size_t i = 0; i < info.num_args(); ++i) {
    if (!info.args[i].written) {
      continue;
    }
    for_each_tensor({args[i]}, [&](const at::Tensor& tensor, int, int) {
      if (is_dtensor(tensor)) {
        check_writable(info, *meta_of(tensor));
      }
    });
  }
}

// Whether the view has to remember how it was made (Note [Views]).
bool is_more_than_alias(const Running& run) {
  const Meta& base = *run.base;
  return base.spec->has_partial || base.derived() || run.plan.outputs.at(0).detached_view ||
         (run.plan.reshape && !base.local.is_contiguous());
}

bool refresh_all(c10::ArrayRef<IValue> args) {
  bool any = false;
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (is_dtensor(tensor)) {
      any |= refresh(*meta_of(tensor));
    }
  });
  return any;
}

// The operands that stay as they are, as local tensors: a merge below replaces the part of a tensor that may be an
// operand twice
// (`x * x` of a scalar P(sum) takes one of them as it is).
void unwrap_unmoved(const Running& run, IValue* args) {
  const auto& moves = run.plan.moves;
  for (size_t i = 0; i < run.info.num_args(); ++i) {
    if (run.info.args[i].written || !args[i].isTensor() || !is_dtensor(args[i].toTensor())) {
      continue;
    }
    const bool moves_it = std::any_of(
        moves.begin(), moves.end(), [&](const CallPlan::OperandMove& move) { return move.arg == static_cast<int>(i); });
    if (!moves_it) {
      args[i] = IValue(meta_of(args[i].toTensor())->local);
    }
  }
}

// Brings the operands to where the plan wants them, as local tensors.
void prepare_operands(Running& run, IValue* args) {
  if (!run.plan.moves.empty()) {
    unwrap_unmoved(run, args);
    move_operands(run, args);
  }
  for (size_t i = 0; i < run.info.num_args(); ++i) {
    if (args[i].isTensor()) {
      unwrap_tensor(run, args[i], run.info.args[i].written);
    } else if (run.info.args[i].is_tensor_list && args[i].isList()) {
      unwrap_list(run, args[i], run.info.args[i].written);
    }
  }
}

void run_plan(RankState& state, const OpInfo& info, const CallPlan& plan, const Scan& scan, Stack& stack) {
  Running run{state, info, plan, scan.origin};
  IValue* args = stack.data() + (stack.size() - info.num_args());
  if (info.writes) {
    check_writes(info, args);
  }
  if (info.is_view && is_dtensor(args[0].toTensor())) {
    run.base = MetaPtr::reclaim_copy(meta_of(args[0].toTensor()));
    run.base_is_inference = args[0].toTensor().is_inference();
  }
  prepare_operands(run, args);
  if (run.base && is_more_than_alias(run)) {
    run.view_args.emplace(args + 1, args + info.num_args());
  }
  for (const auto& [index, value] : plan.rewritten) {
    args[index] = value;
  }
  call_local(run, stack);
  for (const at::Tensor& tensor : run.written) {
    if (is_dtensor(tensor)) {
      note_write(*meta_of(tensor));
    }
  }
  wrap_results(run, stack.data() + (stack.size() - info.num_returns()));
}

// Gives the operands that wait their values.
void settle_operands(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args) {
  const Unobserved unobserved(state);
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (is_dtensor(tensor)) {
      settle(state, *meta_of(tensor), info.name.c_str());
    }
  });
}

// Whether the call was done on handles alone; if not, its operands have their values now.
bool run_carried(RankState& state, const OpInfo& info, const CallPlan& plan, c10::ArrayRef<IValue> args, Stack& stack) {
  if (!is_carried(info)) {
    return false;
  }
  at::Tensor result = carry(state, info, args, plan.outputs.at(0).final_spec);
  if (!result.defined()) {
    settle_operands(state, info, args);
    return false;
  }
  torch::jit::drop(stack, info.num_args());
  stack.emplace_back(std::move(result));
  return true;
}

bool overwrites(const OpInfo& info) { return info.name == "aten::zero_" || info.name == "aten::fill_.Scalar"; }

// Before an operator reads values that lack samples of the step: it must be no derivative, and what lacked samples and
// is written to is marked, as a write drops the record.
void begin_unfinished(RankState& state, const OpInfo& info, const IValue* args) {
  check_unfinished(state, info.name.c_str());
  for (size_t i = 0; i < info.num_args(); ++i) {
    if (!info.args[i].written) {
      continue;
    }
    for_each_tensor({args[i]}, [&](const at::Tensor& tensor, int, int) {
      if (is_dtensor(tensor) && is_unfinished(*meta_of(tensor))) {
        meta_of(tensor)->make_rare().is_unfinished = !overwrites(info);
      }
    });
  }
}

// Afterwards: its new results are marked.
void end_unfinished(const OpInfo& info, const Stack& stack) {
  if (needs_no_value(info)) {
    return;
  }
  for_each_tensor(c10::ArrayRef<IValue>(stack.data() + (stack.size() - info.num_returns()), info.num_returns()),
                  [&](const at::Tensor& tensor, int i, int) {
                    if (is_dtensor(tensor) && info.written_return[i] < 0) {
                      meta_of(tensor)->make_rare().is_unfinished = true;
                    }
                  });
}

// The name of a call for sums over samples: in a derivative, that of the forward call whose derivative it is.
uint64_t use_of(RankState& state, const torch::autograd::Node* node, const ForwardPlans::Slot* forward,
                bool reads_parameter) {
  if (!forward) {
    return state.sites.use(reads_parameter);
  }
  if (C10_LIKELY(!at::GradMode::is_enabled())) {
    return forward->use;
  }
  return state.sites.use_in_backward(forward->use, torch::autograd::get_current_graph_task_id(), node->sequence_nr());
}

// A sum over samples: the result is a handle.
void run_sample_sum(RankState& state, const OpInfo& info, const CallPlan& plan, const Scan& scan, uint64_t use,
                    Stack& stack) {
  Running run{state, info, plan, scan.origin};
  IValue* args = stack.data() + (stack.size() - info.num_args());
  prepare_operands(run, args);
  for (const auto& [index, value] : plan.rewritten) {
    args[index] = value;
  }
  LocalScope scope;
  const Spec& terms = plan.exact->sample->terms;
  const layout::Coord& coord = state.ctx.coord(terms->mesh);
  const at::Tensor& operand = args[plan.exact->sample->operands.at(0).arg].toTensor();
  const auto options = operand.options().dtype(terms->dtype);
  std::optional<SampleSum> earlier =
      state.continuation ? state.continuation->take(use, *plan.exact->sample) : std::nullopt;
  SampleSum sum = earlier ? std::move(*earlier) : SampleSum(*plan.exact->sample);
  sum.add(*plan.exact, ++state.sums_made, scan.origin, c10::ArrayRef<IValue>(args, info.num_args()),
          at::zeros({}, options).expand(terms.local_sizes(coord)));
  auto pending = std::make_shared<Pending>();
  Pending::Group& group = pending->groups.emplace_back();
  group.spec = plan.outputs.at(0).final_spec;
  group.uses.emplace(use, std::move(sum));
  torch::jit::drop(stack, info.num_args());
  stack.emplace_back(make_handle(group.spec, options, coord, pending));
}

// The same in a derivative.
void run_gradient_sum(RankState& state, const OpInfo& info, const CallPlan& plan, const Scan& scan,
                      const torch::autograd::Node& node, uint64_t use, Stack& stack) {
  run_sample_sum(state, info, plan, scan,
                 state.sites.use_of_sum(use, torch::autograd::get_current_graph_task_id(), node.sequence_nr()), stack);
  if (at::GradMode::is_enabled()) {
    settle_for_good(state, *meta_of(stack.back().toTensor()), info.name.c_str());
  }
}

// A derivative whose forward call is not known would name its sums otherwise, and lay them elsewhere.
void check_known(const RankState& state, const OpInfo& info, uint64_t node) {
  TESSERA_CHECK(
      !state.forward_plans.is_lost(node), "[", info.name,
      "] numerics exact: the gradient of a graph whose record is gone: ", ForwardPlans::kMost,
      " operators ran since, it was left over from a pass before the last backward, or its gradients were taken "
      "before (rank ",
      state.ctx.rank, "). Take the gradients of a graph before those of newer ones, in passes of at most ",
      ForwardPlans::kMost, " operators, and with retain_graph if they are taken again.");
}

void tell_observer(RankState& state, const OpInfo& info, const Stack& stack) {
  if (C10_LIKELY(state.observer == nullptr)) {
    return;
  }
  OpObserver& observer = *state.observer;
  const Unobserved unobserved(state);
  observer.on_results(state, info,
                      c10::ArrayRef<IValue>(stack.data() + (stack.size() - info.num_returns()), info.num_returns()));
}

[[noreturn]] void throw_outside(const OpInfo& info) {
  TESSERA_CHECK(false, "[", info.name,
                "] a DTensor was used outside of a rank: its communicators belong to the thread that "
                "run_ranks (or a launcher) started. Take full_tensor(x) inside and use the plain tensor outside.");
  throw std::logic_error("unreachable");
}

}  // namespace

void dispatch(const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  Scan scan;
  scan_arguments(info, args, scan);
  if (C10_UNLIKELY(scan.recorder != nullptr)) {
    return scan.recorder->call(info.op, &stack);
  }
  RankState* current = RankState::current();
  if (C10_UNLIKELY(!current)) {
    throw_outside(info);
  }
  RankState& state = *current;
  const ObservedCall observed(state, info, args);
  if (C10_UNLIKELY(scan.has_derived) && refresh_all(args)) {
    scan = {};
    scan_arguments(info, args, scan);
  }

  const auto node = torch::autograd::get_current_node();
  const ForwardPlans::Slot* forward = nullptr;
  if (node && !state.recomputing) {
    forward = state.forward_plans.find(node->sequence_nr());
    scan.key.push_back(forward ? forward->plan->id : 0);
  } else if (scan.parameter && !info.is_view) {
    if (C10_UNLIKELY(scan.has_plain)) {
      verify_in_job(state, info, args, *scan.parameter);
    }
    state.sites.note_read(scan.parameter);
  }
  state.ctx.current_op = info.name.c_str();
  if (C10_UNLIKELY(state.check_plain && scan.has_plain)) {
    check_plain_operands(state, info, args);
  }
  if (C10_UNLIKELY(state.lattice.has_value())) {
    if (node && !forward && !state.recomputing) {
      check_known(state, info, node->sequence_nr());
    }
    check_samples_apart(state, info, args);
    scan.key.push_back(state.lattice->hash());
  }
  if (C10_UNLIKELY(scan.has_pending) && !is_carried(info) && !needs_no_value(info)) {
    settle_operands(state, info, args);
  }
  if (const auto special = info.special) {
    const Everywhere everywhere(state, info, args);
    special(state, info, stack);
    return tell_observer(state, info, stack);
  }

  const uint64_t hash = hash_of(scan.key);
  CallPlan* plan = state.plans.find(scan.key, hash);
  if (C10_UNLIKELY(!plan)) {
    auto made = make_call_plan(state, info, args, forward ? forward->plan : nullptr);
    state.forward_plans.let_go();
    const uint64_t kind = base::hash_combine(made->program_key, forward ? forward->plan->program_key : 0);
    plan = state.plans.insert(scan.key, hash, kind, std::move(made));
  }
  std::optional<PlanCache::Call> call;
  if (C10_UNLIKELY(!plan->is_kept)) {
    call.emplace(state.plans, *plan);
  }
  if (C10_UNLIKELY(plan->decompose != nullptr)) {
    return plan->decompose(info.op, stack);
  }

  std::optional<kernels::AllThreads> threads;
  if (C10_UNLIKELY(plan->is_long && state.lattice.has_value())) {
    threads.emplace();  // it has a rule, and so the same bits (Note [Threads])
  }
  if (C10_UNLIKELY(state.mode != Mode::kImplicit)) {
    check_explicit(state, info, args, *plan);
  }
  state.ctx.program.note(info.name.c_str(), plan->program_key);
  if (C10_UNLIKELY(scan.has_pending) && run_carried(state, info, *plan, args, stack)) {
    return;
  }
  if (C10_UNLIKELY(scan.has_unfinished) && !needs_no_value(info)) {
    begin_unfinished(state, info, stack.data() + (stack.size() - info.num_args()));
  }
  const uint64_t use = C10_LIKELY(!state.lattice) ? 0 : use_of(state, node.get(), forward, scan.parameter != nullptr);
  if (!plan->exact || !plan->exact->sample) {
    run_plan(state, info, *plan, scan, stack);
  } else if (node && !state.recomputing) {
    run_gradient_sum(state, info, *plan, scan, *node, use, stack);
  } else {
    run_sample_sum(state, info, *plan, scan, use, stack);
  }
  if (C10_UNLIKELY(scan.has_unfinished)) {
    end_unfinished(info, stack);
  }
  state.forward_plans.record(at::sequence_number::peek() - 1, *plan, use);
  tell_observer(state, info, stack);
}

}  // namespace tessera::dtensor
