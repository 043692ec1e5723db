#include "tessera/dtensor/dispatch/executors.h"

#include <optional>

#include <ATen/TensorUtils.h>
#include <ATen/ops/reshape.h>

#include "tessera/dtensor/dispatch/absent.h"
#include "tessera/dtensor/dispatch/add_in_kernel.h"
#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/dispatch/operands.h"
#include "tessera/dtensor/dispatch/put_off.h"
#include "tessera/dtensor/dispatch/sum_executor.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/view/view_part.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

// What lives while one call runs: the tensors that it writes, and what its results are views of.
struct Running {
  Running(Invocation& invocation, const CallPlan& its_plan) : call(invocation), plan(its_plan) {}

  Invocation& call;
  const CallPlan& plan;
  c10::SmallVector<at::Tensor, 2> written;
  MetaPtr base;
  c10::VariableVersion writes_of_base;
  std::optional<std::vector<IValue>> view_args;  // of a view that may have to be made again
  bool copied = false;                           // a view whose part had to be copied
  int64_t next_view = 0;
};

void check_writes(const Invocation& call) {
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor, int arg, int) {
    if (call.info.args[arg].written && is_dtensor(tensor)) {
      check_writable(call.info, *meta_of(tensor));
    }
  });
}

bool can_be_viewed(const at::Tensor& part, c10::IntArrayRef shape) {
  return part.is_contiguous() || at::detail::computeStride(part.sizes(), part.strides(), shape);
}

// Whether the view has to remember how it was made (Note [Views]).
bool is_more_than_alias(const Running& run) {
  const Meta& base = *run.base;
  return base.spec->has_partial || base.derived() || run.plan.outputs.at(0).detached_view ||
         (run.plan.reshape && !can_be_viewed(run.call.args()[0].toTensor(), run.plan.local_shape));
}

// The parts that the local operator reads stand on the stack afterwards.
void begin(Running& run) {
  const Invocation& call = run.call;
  if (call.info.writes) {
    check_writes(call);
  }
  if (const IValue& first = call.args()[0]; call.info.is_view && is_dtensor(first.toTensor())) {
    run.base = MetaPtr::reclaim_copy(meta_of(first.toTensor()));
    run.writes_of_base = first.toTensor().unsafeGetTensorImpl()->version_counter();
  }
  prepare_operands(call, run.plan, run.written);
  if (run.base && is_more_than_alias(run)) {  // as the base is now: what was a Partial may be merged
    run.view_args.emplace(call.args() + 1, call.args() + call.info.num_args());
  }
  rewrite_sizes(call, run.plan);
}

at::Tensor wrap_output(Running& run, const CallPlan::Output& output, at::Tensor local) {
  if (!local.defined()) {
    return local;
  }
  if (output.move) {
    local = run_move(run.call.state->ctx, *output.move, local, run.call.info.name.c_str());
  }
  if (C10_UNLIKELY(output.hand_on != nullptr)) {
    local = run_move(run.call.state->ctx, *output.hand_on, local, run.call.info.name.c_str());
  }
  auto meta = c10::make_intrusive<Meta>();
  meta->local = std::move(local);
  meta->spec = output.result_spec();
  meta->origin = run.call.scan.origin;
  if (!output.is_view || !run.base) {
    return wrap(std::move(meta), output.prototype);
  }
  meta->parameter = run.base->parameter;  // what reads `w.t()` reads the parameter
  run.base->memory().has_views = true;
  if (C10_UNLIKELY(run.view_args.has_value())) {
    record_view(*meta, run.base, run.call.info, *run.view_args, run.next_view++, !output.detached_view && !run.copied);
  } else {
    meta->root = run.base->root ? run.base->root : run.base;
  }
  return wrap_view(std::move(meta), run.writes_of_base, output.prototype);
}

// Makes DTensors of the parts that the local operator left on the stack.
void end(Running& run) {
  for (const at::Tensor& tensor : run.written) {
    if (is_dtensor(tensor)) {
      note_write(*meta_of(tensor));
    }
  }
  const OpInfo& info = run.call.info;
  IValue* results = run.call.stack.data() + (run.call.stack.size() - info.num_returns());
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
      at::Tensor& part = result.toTensor();
      part = wrap_output(run, run.plan.outputs[next_output++], std::move(part));
    }
  }
}

using LocalCall = void (*)(Running& run, torch::jit::Stack& stack);

void replace_arguments(Running& run, at::Tensor result) {
  torch::jit::drop(run.call.stack, run.call.info.num_args());
  run.call.stack.emplace_back(std::move(result));
}

void call_operator(Running& run, torch::jit::Stack& stack) { run.call.info.op.callBoxed(stack); }

void call_kernel(Running& run, torch::jit::Stack& stack) { run.plan.local(*run.plan.local_call, stack); }

// A view and its kin: the part in the shape that its rank has.
void call_reshape(Running& run, torch::jit::Stack&) {
  const at::Tensor local = std::move(run.call.args()[0]).toTensor();
  if (C10_LIKELY(local.is_contiguous())) {
    return replace_arguments(run, view_part(local, run.plan.local_shape, run.plan.local_prototype));
  }
  if (const auto strides = at::detail::computeStride(local.sizes(), local.strides(), run.plan.local_shape)) {
    return replace_arguments(run, view_part(local, run.plan.local_shape, *strides));
  }
  run.copied = run.call.info.is_view;
  replace_arguments(run, at::reshape(local, run.plan.local_shape));
}

void call_node_sum(Running& run, torch::jit::Stack&) {
  replace_arguments(
      run, run_node_sum(run.call.state->ctx, *run.plan.exact, run.call.arguments(), run.call.info.name.c_str()));
}

void call_per_sample(Running& run, torch::jit::Stack& stack) {
  run_per_sample(*run.plan.per_sample, run.call.info, stack);
}

void call_elsewhere(Running& run, torch::jit::Stack& stack) { give_nothing(run.call.info, run.plan, stack); }

template <LocalCall kCall>
[[gnu::flatten]] void run_with(Invocation& call, const CallPlan& plan) {
  Running run(call, plan);
  begin(run);
  {
    const LocalScope scope;
    kCall(run, call.stack);
  }
  end(run);
}

// The same, of which all but the moves of operands may be put off: leaves a handle then. Not in `exact`, where products
// are sums over samples: ranks of other stages have no handle of what is left, and would join gradients otherwise.
template <LocalCall kCall>
void run_late_with(Invocation& call, const CallPlan& plan) {
  if ((call.flags & kExact) != 0 || !is_put_off(call, plan)) {
    return run_with<kCall>(call, plan);
  }
  Running run(call, plan);
  begin(run);
  const Spec spec = plan.outputs[0].final_spec;
  const at::TensorOptions options = call.args()[call.info.tensor_args.front()].toTensor().options().dtype(spec->dtype);
  auto pending = std::make_shared<Pending>();
  Pending::Group& group = pending->groups.emplace_back();
  group.spec = spec;
  group.late = put_off(call, plan, [&info = call.info, &plan, parts = call.arguments().vec()](const at::Tensor* onto) {
    if (onto && add_in_kernel(info, plan, parts, *onto)) {
      return LateCall::Result{.is_added = true};
    }
    torch::jit::Stack stack = parts;
    Invocation again(info, stack);
    Running late(again, plan);
    kCall(late, stack);
    end(late);
    return LateCall::Result{.part = meta_of(stack.back().toTensor())->local};
  });
  torch::jit::drop(call.stack, call.info.num_args());
  call.stack.emplace_back(make_handle(spec, options, call.state->ctx.coord(spec->mesh), pending));
}

template <LocalCall kCall>
Executor executor_with(const CallPlan& plan) {
  return plan.makes_parameter_gradient ? run_late_with<kCall> : run_with<kCall>;
}

}  // namespace

Executor executor_of(const CallPlan& plan) {
  if (plan.exact && plan.exact->sample) {
    return run_sample_sum;
  }
  return plan.is_absent    ? run_with<call_elsewhere>
         : plan.reshape    ? run_with<call_reshape>
         : plan.exact      ? run_with<call_node_sum>
         : plan.per_sample ? run_with<call_per_sample>
         : plan.local      ? executor_with<call_kernel>(plan)
                           : executor_with<call_operator>(plan);
}

}  // namespace tessera::dtensor
