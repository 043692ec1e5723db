#include "tessera/dtensor/plan/per_sample.h"

#include <ATen/ops/cat.h>

#include "tessera/base/error.h"
#include "tessera/kernels/base/threads.h"
#include "tessera/rules/engine/propagate.h"
#include "tessera/rules/exact/exact.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;

// The one factor that holds samples, or -1.
int sample_factor(const rules::Call& call, const rules::FactorMap& map) {
  int found = -1;
  for (size_t f = 0; f < map.factors.size(); ++f) {
    if (!rules::counts_samples(rules::labels_of_factor(call, map, static_cast<int>(f)))) {
      continue;
    }
    TESSERA_CHECK(found < 0, "[", rules::describe(call),
                  "] numerics exact: two dims hold samples, so it has no form for one sample");
    found = static_cast<int>(f);
  }
  return found;
}

at::Tensor aligned_copy(const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }

// The call on rows [begin, begin + length) of the operands that hold samples.
Stack run_on(const PerSample& plan, const OpInfo& info, c10::ArrayRef<IValue> args, int64_t begin, int64_t length) {
  Stack stack(args.begin(), args.end());
  for (const PerSample::Operand& operand : plan.operands) {
    stack[operand.arg] = stack[operand.arg].toTensor().narrow(operand.dim, begin, length);
  }
  for (IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) {
      value = aligned_copy(value.toTensor());
    }
  }
  rules::WidenedArgs widened(info.op, stack);
  info.op.callBoxed(stack);
  widened.round_results();
  return stack;
}

}  // namespace

std::unique_ptr<PerSample> plan_per_sample(const rules::Call& call, rules::FactorMap& map) {
  auto plan = std::make_unique<PerSample>();
  const int samples = sample_factor(call, map);
  for (size_t f = 0; f < map.factors.size(); ++f) {
    map.factors[f].can_shard = map.factors[f].can_shard && static_cast<int>(f) == samples;
  }
  if (samples < 0) {
    return plan;
  }

  const layout::DimLabels labels = rules::labels_of_factor(call, map, samples);
  plan->rows = map.factors[samples].extent / labels.front().extent;
  map.factors[samples].unit = plan->rows;
  const auto dim_of = [&](const rules::TensorFactors& tensor) {
    const auto found = std::find(tensor.begin(), tensor.end(), rules::DimFactors{samples});
    return found == tensor.end() ? -1 : found - tensor.begin();
  };
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (const int64_t dim = dim_of(map.operands[i]); dim >= 0) {
      plan->operands.push_back({call.operands[i].arg, dim});
    }
  }
  bool has_all = labels.front().label == layout::Label::kBatch;
  for (const rules::TensorFactors& output : map.outputs) {
    plan->outputs.push_back(dim_of(output));
    has_all = has_all && plan->outputs.back() >= 0;
  }
  TESSERA_CHECK(has_all, "[", rules::describe(call),
                "] numerics exact: samples meet in this operator, whose kernel has no order of its own for them. "
                "Write it with sums and products, compute it on full_tensor(x), or use numerics fast.");
  return plan;
}

void run_per_sample(const PerSample& plan, const OpInfo& info, Stack& stack) {
  const size_t begin = stack.size() - info.num_args();
  const std::vector<IValue> args(stack.begin() + static_cast<int64_t>(begin), stack.end());
  stack.resize(begin);
  const int64_t held =
      plan.operands.empty() ? plan.rows : args[plan.operands[0].arg].toTensor().size(plan.operands[0].dim);
  const kernels::OneThread one_thread;
  std::vector<std::vector<at::Tensor>> parts(info.num_returns());
  for (int64_t row = 0; row < std::max<int64_t>(held, 1); row += plan.rows) {
    const Stack results = run_on(plan, info, args, row, std::min(plan.rows, held));
    for (size_t i = 0; i < results.size(); ++i) {
      parts[i].push_back(results[i].toTensor());
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor result = parts[i].size() == 1 ? parts[i][0] : at::cat(parts[i], plan.outputs[i]);
    const int written = info.written_return[i];
    stack.emplace_back(written < 0 ? result : args[written].toTensor().copy_(result));
  }
}

}  // namespace tessera::dtensor
