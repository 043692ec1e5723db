#include "tessera/dtensor/plan/call_plan.h"

#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

rules::LocalCall make_local_call(const OpInfo& info, const rules::Propagation& decided, const layout::Coord& coord) {
  rules::LocalCall local;
  local.op = &info.op;
  local.operands = decided.operands;
  local.outputs = decided.outputs;
  for (const Spec& spec : decided.operands) {
    local.operand_ranges.push_back(spec.first_runs(coord));
  }
  for (const Spec& spec : decided.outputs) {
    local.output_ranges.push_back(spec.first_runs(coord));
  }
  return local;
}

}  // namespace tessera::dtensor
