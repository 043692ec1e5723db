#include "tessera/dtensor/dispatch/invocation.h"

#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

Invocation::Invocation(const OpInfo& op, torch::jit::Stack& arguments_on_top)
    : info(op), stack(arguments_on_top), state(RankState::current()), node(torch::autograd::get_current_node()) {
  scan_arguments(info, arguments(), scan);
  flags = scan.flags | (C10_LIKELY(state != nullptr) ? state->flags() : kNoRank);
}

bool Invocation::reads_gathered() const {
  if (is_in_derivative() || state->pass.region()) {
    return true;
  }
  bool is_differentiated = false;
  for_each_tensor(arguments(), [&](const at::Tensor& tensor, int, int) {
    is_differentiated |= is_dtensor(tensor) && meta_of(tensor)->parameter && tensor.requires_grad();
  });
  return is_differentiated && at::GradMode::is_enabled();
}

void Invocation::place() {
  if (is_in_derivative()) {
    forward = state->engine.forward_plans.find(node->sequence_nr());
    scan.key.push_back(forward ? forward->plan->id : 0);
  } else if (scan.parameter && !info.is_view) {
    state->pass.sites.note_read(scan.parameter);
  }
  state->ctx.current_op = info.name.c_str();
}

}  // namespace tessera::dtensor
