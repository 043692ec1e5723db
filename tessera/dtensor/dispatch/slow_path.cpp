#include "tessera/dtensor/dispatch/slow_path.h"

#include <optional>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch/absent.h"
#include "tessera/dtensor/dispatch/kept_results.h"
#include "tessera/dtensor/dispatch/outside_job.h"
#include "tessera/dtensor/dispatch/plain_operands.h"
#include "tessera/dtensor/dispatch/planner.h"
#include "tessera/dtensor/dispatch/rule_call.h"
#include "tessera/dtensor/dispatch/saved_results.h"
#include "tessera/dtensor/dispatch/step_gradients.h"
#include "tessera/dtensor/exact/carry.h"
#include "tessera/dtensor/exact/exact_plan.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/state/explicit_mode.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

[[noreturn]] void throw_outside(const OpInfo& info) {
  TESSERA_CHECK(false, "[", info.name,
                "] a DTensor was used outside of a rank: its communicators belong to the thread that "
                "run_ranks (or a launcher) started. Take full_tensor(x) inside and use the plain tensor outside.");
  throw std::logic_error("unreachable");
}

// Makes views again whose base changed, which gives them other layouts.
void refresh_views(Invocation& call) {
  bool any = false;
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor, int, int) {
    if (is_dtensor(tensor)) {
      any |= refresh(*meta_of(tensor));
    }
  });
  if (any) {
    call.scan = {};
    scan_arguments(call.info, call.arguments(), call.scan);
    call.flags = call.scan.flags | call.state->flags();
  }
}

// A derivative whose forward call is not known would name its sums otherwise, and lay them elsewhere.
void check_known(const RankState& state, const OpInfo& info, uint64_t node) {
  TESSERA_CHECK(
      !state.engine.forward_plans.is_lost(node), "[", info.name,
      "] numerics exact: the gradient of a graph whose record is gone: ", ForwardPlans::kMost,
      " operators ran since, it was left over from a pass before the last backward, or its gradients were taken "
      "before (rank ",
      state.ctx.rank, "). Take the gradients of a graph before those of newer ones, in passes of at most ",
      ForwardPlans::kMost, " operators, and with retain_graph if they are taken again.");
}

void check_on_cpu(const Invocation& call) {
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor, int, int) {
    TESSERA_CHECK(
        !tensor.is_cuda(), "[", call.info.name, "] numerics exact: an operand on ", tensor.device(), " (rank ",
        call.state->ctx.rank,
        "); its sums are made on CPUs so far. There, move model and batch to the CPU; or compute with numerics "
        "fast");
  });
}

void begin_exact(Invocation& call) {
  check_on_cpu(call);
  if (call.is_in_derivative() && !call.forward) {
    check_known(*call.state, call.info, call.node->sequence_nr());
  }
  check_samples_apart(*call.state, call.info, call.arguments());
  call.scan.key.push_back(call.state->exact.lattice()->hash());
}

// The name of a call for sums over samples: in a derivative, that of the forward call whose derivative it is.
uint64_t use_of(const Invocation& call) {
  Sites& sites = call.state->pass.sites;
  if (!call.forward) {
    return sites.use(call.scan.parameter != nullptr);
  }
  if (C10_LIKELY(!at::GradMode::is_enabled())) {
    return call.forward->use;
  }
  return sites.use_in_backward(call.forward->use, torch::autograd::get_current_graph_task_id(),
                               call.node->sequence_nr());
}

// Gives the operands that wait their values.
void settle_operands(Invocation& call) {
  const Unobserved unobserved(*call.state);
  const char* op = call.info.name.c_str();
  std::vector<at::Tensor> waiting;
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor, int, int) {
    if (is_dtensor(tensor) && meta_of(tensor)->is_pending()) {
      waiting.push_back(tensor);
    }
  });
  std::vector<at::Tensor> together = waiting;
  if (!waiting.empty()) {
    const auto more = waiting_gradients(*call.state, *meta_of(waiting.front()));
    together.insert(together.end(), more.begin(), more.end());
  }
  if (together.size() > 1) {
    merge_complete(*call.state, together, kSmallTogether, op);
  }
  for (const at::Tensor& tensor : waiting) {
    settle(*call.state, *meta_of(tensor), op);
  }
}

// Whether the call was done on handles alone; if not, its operands have their values now. What waits for a sum alone
// (PutsOff::kSums) has them as soon as anything else reads it: ranks of other stages do not wait, and call the same.
bool run_carried(Invocation& call, const CallPlan& plan) {
  if (!is_carried(call.info)) {
    return false;
  }
  at::Tensor result;
  if (call.state->ctx.walk.puts_off != comm::PutsOff::kSums) {
    result = carry(*call.state, call.info, call.arguments(), plan.outputs.at(0).final_spec);
  }
  if (!result.defined()) {
    settle_operands(call);
    return false;
  }
  torch::jit::drop(call.stack, call.info.num_args());
  call.stack.emplace_back(std::move(result));
  return true;
}

// Before an operator reads values that lack samples of the step: it must be no derivative, and what lacked samples and
// is written to is marked, as a write drops the record.
void begin_unfinished(const Invocation& call) {
  check_unfinished(*call.state, call.info.name.c_str());
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor, int arg, int) {
    if (call.info.args[arg].written && is_dtensor(tensor) && is_unfinished(*meta_of(tensor))) {
      meta_of(tensor)->make_rare().is_unfinished = !call.info.row.overwrites;
    }
  });
}

// Afterwards: its new results are marked.
void end_unfinished(const Invocation& call) {
  for_each_tensor(call.results(), [&](const at::Tensor& tensor, int i, int) {
    if (is_dtensor(tensor) && call.info.written_return[i] < 0) {
      meta_of(tensor)->make_rare().is_unfinished = true;
    }
  });
}

void tell_observer(const Invocation& call) {
  OpObserver* observer = call.state->watch.observer();
  if (C10_LIKELY(!observer)) {
    return;
  }
  const Unobserved unobserved(*call.state);
  observer->on_results(*call.state, call.info, call.results());
}

// What is kept of a call, or taken; null: no body that runs keeps results.
class InBody {
 public:
  InBody(Invocation& call, bool runs_as_others) : call_(call) {
    if (C10_UNLIKELY(call.state->bodies.keeping() != nullptr)) {
      kept_.emplace(call, runs_as_others);
    }
  }
  bool take() { return kept_ && kept_->take(); }
  void end() {
    if (kept_) {
      kept_->keep();
    }
    note();
  }
  void note() {
    if (SavedResults* saved = call_.state->bodies.saving()) {
      saved->note(call_.results());
    }
  }

 private:
  Invocation& call_;
  std::optional<KeptCall> kept_;
};

// Throws in explicit mode (warns in kWarn) if the plan moves operands, which the program did not write; shows the line
// to write.
void check_moves(const Invocation& call, const CallPlan& plan) {
  for (const CallPlan::OperandMove& action : plan.moves) {
    if (action.move->communicates) {
      check_explicit(*call.state, rules::describe(make_call(call.info, call.arguments())),
                     call.info.argument_name(action.arg, action.item), *action.move);
    }
  }
}

void run_special(Invocation& call) {
  InBody body(call, /*runs_as_others=*/true);
  if (body.take()) {
    return body.note();
  }
  std::optional<Everywhere> everywhere;
  if (call.flags & kElsewhere) {
    everywhere.emplace(*call.state, call.info, call.arguments());
  }
  call.info.special(*call.state, call.info, call.stack);
  body.end();
  tell_observer(call);
}

}  // namespace

void dispatch_slowly(Invocation& call) {
  if (call.flags & kDeferred) {
    return call.scan.recorder->call(call.info.op, &call.stack);
  }
  if (call.flags & kNoRank) {
    throw_outside(call.info);
  }
  if ((call.flags & kOfVocabulary) && take_own_term(call)) {
    return;
  }
  const ObservedCall observed(*call.state, call.info, call.arguments());
  if (call.flags & kDerived) {
    refresh_views(call);
  }
  if ((call.flags & kPlainReading) && !call.info.is_view && !call.is_in_derivative()) {
    verify_in_job(*call.state, call.info, call.arguments(), *call.scan.parameter);
  }
  call.place();
  if ((call.flags & kInBody) && call.info.writes) {
    KeptResults::begin_write(call);
  }
  if (call.flags & kGathered) {
    call.scan.key.push_back(call.reads_gathered());
  }
  if ((call.flags & kChecksPlain) && (call.flags & kPlain)) {
    check_plain_operands(*call.state, call.info, call.arguments());
  }
  if (call.flags & kExact) {
    begin_exact(call);
  }
  if ((call.flags & kPending) && !is_carried(call.info) && !needs_no_value(call.info)) {
    settle_operands(call);
  }
  if (call.info.special) {
    return run_special(call);
  }
  run_slowly(call, plan_of(call));
}

void run_slowly(Invocation& call, CallPlan& plan) {
  std::optional<PlanCache::Call> trial;
  if (!plan.is_kept) {
    trial.emplace(call.state->engine.plans(), plan);
  }
  InBody body(call, /*runs_as_others=*/plan.decompose != nullptr);
  if (plan.decompose) {
    if (body.take()) {
      return body.note();
    }
    plan.decompose(call.info.op, call.stack);
    return body.end();
  }
  std::optional<kernels::AllThreads> threads;
  if (plan.is_long && (call.flags & kExact)) {
    threads.emplace();  // it has a rule, and so the same bits (Note [Threads])
  }
  if (call.flags & kAsksForMoves) {
    check_moves(call, plan);
  }
  call.state->ctx.program.note(call.info.name.c_str(), plan.program_key);
  if ((call.flags & kPending) && run_carried(call, plan)) {
    return;
  }
  const bool is_unfinished_call = (call.flags & kUnfinished) && !needs_no_value(call.info);
  if (is_unfinished_call) {
    begin_unfinished(call);
  }
  if (call.flags & kExact) {
    call.use = use_of(call);
  }
  const bool is_taken = body.take();
  if (!is_taken) {
    plan.execute(call, plan);
  }
  if (is_unfinished_call) {
    end_unfinished(call);
  }
  call.state->engine.forward_plans.record(at::sequence_number::peek() - 1, plan, call.use);
  if (is_taken) {
    return body.note();
  }
  body.end();
  tell_observer(call);
}

}  // namespace tessera::dtensor
