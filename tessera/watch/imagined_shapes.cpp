#include "tessera/watch/imagined_shapes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/stack.h>

#include "tessera/dtensor/record/arguments.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::watch {
namespace {

const rules::Rule* rule_of(const c10::OperatorHandle& op) {
  return rules::RuleTable::instance().find(c10::toString(op.operator_name()));
}

// The call as that of a job of one rank.
rules::Call call_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  rules::Call call;
  call.name = c10::toString(op.operator_name());
  call.schema = &op.schema();
  call.args = args.vec();
  dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int) {
    call.operands.push_back(
        {.spec = layout::Spec::make({}, {}, tensor.sizes(), tensor.strides(), tensor.scalar_type()), .arg = arg});
  });
  return call;
}

int64_t extent_of(const rules::FactorMap& map, const rules::DimFactors& dim) {
  int64_t extent = 1;
  for (const int factor : dim) {
    extent *= map.factors[static_cast<size_t>(factor)].extent;
  }
  return extent;
}

}  // namespace

bool has_shapes_by_rule(const c10::OperatorHandle& op) {
  const rules::Rule* rule = rule_of(op);
  return rule && rule->map && rule->shape == rules::ShapeSource::kFactors;
}

void give_shapes_by_rule(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack) {
  const size_t count = op.schema().arguments().size();
  const rules::Call call = call_of(op, torch::jit::last(*stack, count));
  const rules::FactorMap map = rule_of(op)->map(call);
  const bool has_mask = call.has_arg("output_mask");
  std::vector<c10::IValue> results;
  for (size_t i = 0; i < map.outputs.size(); ++i) {
    if (has_mask && !call.arg("output_mask").toBoolList().get(i)) {
      results.emplace_back(at::Tensor());
      continue;
    }
    std::vector<int64_t> sizes;
    for (const rules::DimFactors& dim : map.outputs[i]) {
      sizes.push_back(extent_of(map, dim));
    }
    const auto dtype = map.dtypes.empty() ? call.spec(0)->dtype : map.dtypes.at(i);
    results.emplace_back(at::Tensor(at::detail::empty_cpu(sizes, dtype)));
  }
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), results.begin(), results.end());
}

}  // namespace tessera::watch
