#include "tessera/dtensor/dispatch/operands.h"

#include <algorithm>

#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

// The operand on the layout that the plan wants.
at::Tensor moved(RankState& state, const OpInfo& info, const Move& move, const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) {
    return run_move(state.ctx, move, tensor, info.name.c_str());
  }
  Meta* meta = meta_of(tensor);
  if (meta->spec == move.to) {
    return meta->local;  // another operand of this call was the same tensor
  }
  if (C10_UNLIKELY(meta->spec != move.from)) {  // ... and was merged to another layout
    return run_move(state.ctx, *state.engine.moves.find_or_plan(meta->spec, move.to), meta->local, info.name.c_str());
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
  if (meta->rare && meta->rare->gathered_spec == move.to && meta->unchanged_since(meta->rare->gathered_at) &&
      meta->rare->gathered.is_inference() <= c10::InferenceMode::is_enabled()) {
    return meta->rare->gathered;
  }
  at::Tensor result = run_move(state.ctx, move, meta->local, info.name.c_str());
  Rare& rare = meta->make_rare();
  rare.gathered_spec = move.to;
  rare.gathered = result;
  rare.gathered_at = meta->moment();
  // Of the largest part, so that all ranks drop the same copies.
  const int64_t most = c10::multiply_integers(move.to.largest_sizes());
  state.engine.gathered.add(MetaPtr::reclaim_copy(meta), most * result.element_size());
  return result;
}

// The operands that stay as they are, as local tensors: a merge below replaces the part of a tensor that may be an
// operand twice (`x * x` of a scalar P(sum) takes one of them as it is).
void unwrap_unmoved(const Invocation& call, const CallPlan& plan) {
  for (size_t i = 0; i < call.info.num_args(); ++i) {
    IValue& arg = call.args()[i];
    if (call.info.args[i].written || !arg.isTensor() || !is_dtensor(arg.toTensor())) {
      continue;
    }
    const bool moves_it = std::any_of(plan.moves.begin(), plan.moves.end(), [&](const CallPlan::OperandMove& move) {
      return move.arg == static_cast<int>(i);
    });
    if (!moves_it) {
      arg = IValue(meta_of(arg.toTensor())->local);
    }
  }
}

void move_operands(const Invocation& call, const CallPlan& plan) {
  for (const CallPlan::OperandMove& action : plan.moves) {
    IValue& arg = call.args()[action.arg];
    const at::Tensor tensor = action.item < 0 ? arg.toTensor() : arg.toListRef()[action.item].toTensor();
    at::Tensor result = moved(*call.state, call.info, *action.move, tensor);
    if (!call.info.args[action.arg].written) {
      replace_tensor(arg, action.item, std::move(result));
    }
  }
}

void unwrap_list(IValue& arg) {
  for_each_tensor({arg}, [&](const at::Tensor& tensor, int, int item) {
    if (is_dtensor(tensor)) {
      replace_tensor(arg, item, meta_of(tensor)->local);
    }
  });
}

}  // namespace

[[gnu::flatten]] void prepare_operands(const Invocation& call, const CallPlan& plan,
                                       c10::SmallVectorImpl<at::Tensor>& written) {
  if (!plan.moves.empty()) {
    unwrap_unmoved(call, plan);
    move_operands(call, plan);
  }
  IValue* args = call.args();
  for (const int i : call.info.tensor_args) {
    IValue& arg = args[i];
    if (C10_UNLIKELY(call.info.args[i].written)) {
      for_each_tensor({arg}, [&](const at::Tensor& tensor, int, int) { written.push_back(tensor); });
    }
    if (arg.isTensor()) {
      if (at::Tensor& tensor = arg.toTensor(); is_dtensor(tensor)) {
        tensor = at::Tensor(meta_of(tensor)->local);
      }
    } else if (arg.isList()) {
      unwrap_list(arg);
    }
  }
}

}  // namespace tessera::dtensor
