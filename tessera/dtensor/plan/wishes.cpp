#include "tessera/dtensor/plan/wishes.h"

#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

using layout::Placements;

rules::Wishes wishes_of(const rules::Call& call, const CallPlan* forward) {
  rules::Wishes wishes;
  if (!forward) {
    return wishes;
  }
  wishes.operands.resize(call.operands.size());
  wishes.outputs.resize(call.outputs.size());
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (!call.operands[i].spec->has_partial) {
      continue;
    }
    for (const CallPlan::Output& output : forward->outputs) {
      if (output.defined && output.result_spec()->sizes == call.operands[i].spec->sizes) {
        const GatherPolicy* gather = output.is_view ? forward->gather_of(0) : nullptr;
        wishes.operands[i] = (gather ? gathered(output.result_spec(), gather->read) : output.result_spec())->placements;
        break;
      }
    }
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (const auto k = parameter_of_gradient(*forward, call.outputs[i].sizes)) {
      const GatherPolicy* gather = forward->gather_of(*k);
      const layout::Spec& stored = forward->operands[*k];
      wishes.outputs[i] = gather ? gathered(stored, gather->read)->placements : stored->placements;
    }
  }
  return wishes;
}

std::optional<size_t> parameter_of_gradient(const CallPlan& forward, c10::IntArrayRef sizes) {
  int matches = 0;
  std::optional<size_t> found;
  for (size_t k = 0; k < forward.operands.size(); ++k) {
    if (sizes.equals(forward.operands[k]->sizes)) {
      ++matches;
      found = forward.operand_is_parameter[k] ? std::optional(k) : found;
    }
  }
  return matches == 1 ? found : std::nullopt;
}

const ParameterInfo* wanting_parameter(c10::ArrayRef<c10::IValue> args) {
  const ParameterInfo* found = nullptr;
  bool has_activation = false;
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (!is_dtensor(tensor)) {
      return;
    }
    const Meta& meta = *meta_of(tensor);
    if (meta.parameter && (meta.parameter->input || meta.parameter->output)) {
      found = meta.parameter;
    }
    has_activation |= !meta.parameter && !meta.spec->labels.empty();
  });
  return has_activation ? found : nullptr;
}

layout::Spec with_wish(const layout::Spec& spec, Placements wants) {
  if (layout::last_cut_dim(wants) >= spec->ndim()) {
    return spec;
  }
  for (size_t axis = 0; axis < wants.size(); ++axis) {
    const layout::Placement& now = spec->placements[axis];
    if (now.shares_dim(wants[axis])) {
      wants[axis] = now;
    }
  }
  return spec.with(wants);
}

}  // namespace tessera::dtensor
