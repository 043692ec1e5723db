#include "tessera/dtensor/dispatch/absent.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include "tessera/dtensor/exact/carry.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/layout/vocabulary.h"

namespace tessera::dtensor {

using c10::IValue;
using layout::Placements;

namespace {

at::Tensor no_elements(at::ScalarType dtype, c10::Device device) {
  return device.is_cpu() ? at::Tensor(at::detail::empty_cpu({0}, dtype))
                         : at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

void give_nothing(const OpInfo& info, const CallPlan& plan, std::vector<IValue>& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  c10::Device device(c10::kCPU);
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) { device = tensor.device(); });
  torch::jit::drop(stack, info.num_args());
  size_t next = 0;
  const auto part = [&] {
    const CallPlan::Output& output = plan.outputs[next++];
    return output.defined ? no_elements(output.spec->dtype, device) : at::Tensor();
  };
  for (size_t i = 0; i < info.num_returns(); ++i) {
    if (plan.list_returns[i] < 0) {
      stack.emplace_back(part());
      continue;
    }
    c10::List<at::Tensor> list;
    for (int k = 0; k < plan.list_returns[i]; ++k) {
      list.push_back(part());
    }
    stack.emplace_back(std::move(list));
  }
}

bool take_own_term(Invocation& call) {
  const comm::Walk& walk = call.state->ctx.walk;
  if (!(call.flags & kElsewhere) || call.info.row.carry != rules::Carry::kAdd || call.info.writes) {
    return false;
  }
  const auto place_of = [&](const IValue& value) -> const layout::Placement* {
    if (!value.isTensor() || !is_dtensor(value.toTensor())) {
      return nullptr;
    }
    const layout::Spec& spec = meta_of(value.toTensor())->spec;
    return &spec->placements[spec->mesh.axis_index(walk.axis)];
  };
  const layout::Placement *left = place_of(call.args()[0]), *right = place_of(call.args()[1]);
  if (!left || !right || left->is_on() == right->is_on()) {
    return false;
  }
  const layout::Placement &own = left->is_on() ? *right : *left, &other = left->is_on() ? *left : *right;
  if (own.is_replicate() || !layout::is_of_vocabulary(other.stage)) {
    return false;
  }
  IValue term = call.args()[left->is_on() ? 1 : 0];
  torch::jit::drop(call.stack, call.info.num_args());
  call.stack.push_back(std::move(term));
  return true;
}

Placements without_on(Placements placements) {
  std::replace_if(
      placements.begin(), placements.end(), [](const layout::Placement& p) { return p.is_on(); }, layout::Replicate());
  return placements;
}

namespace {

// Kernels that take parts as they are, whatever their sizes, or are made of other operators, which find their own home.
bool takes_parts(const OpInfo& info) {
  using rules::Special;
  switch (info.row.special) {
    case Special::kBernoulli:
    case Special::kDropout:
    case Special::kRandomFill:
    case Special::kRandomLike:
    case Special::kViewInPlace:
    case Special::kZerosLikePrimal: return true;
    default: return false;
  }
}

}  // namespace

Everywhere::Everywhere(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args) : state_(state), info_(info) {
  if (args[0].isTensorList() || takes_parts(info)) {
    return;
  }
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (!is_dtensor(tensor) || meta_of(tensor)->spec->is_everywhere || needs_no_value(info)) {
      return;
    }
    Meta& meta = *meta_of(tensor);
    moved_.emplace_back(tensor, meta.spec->placements);
    const MovePtr move = state.engine.moves.find_or_plan(meta.spec, meta.spec.with(without_on(meta.spec->placements)));
    meta.replace(run_move(state.ctx, *move, meta.local, info.name.c_str()), move->to);
  });
}

void Everywhere::put_back() {
  for (const auto& [tensor, before] : moved_) {
    Meta& meta = *meta_of(tensor);
    Placements to = meta.spec->placements;
    for (size_t axis = 0; axis < to.size(); ++axis) {
      to[axis] = before[axis].is_on() ? before[axis] : to[axis];
    }
    const MovePtr move = state_.engine.moves.find_or_plan(meta.spec, meta.spec.with(to));
    meta.replace(run_move(state_.ctx, *move, meta.local, info_.name.c_str()), move->to);
  }
}

}  // namespace tessera::dtensor
