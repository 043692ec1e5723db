#include "tessera/dtensor/dispatch/add_in_kernel.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>

#include "tessera/base/hash.h"
#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

uint64_t strides_of(const std::vector<IValue>& parts) {
  uint64_t hash = 1;
  for_each_tensor(parts, [&](const at::Tensor& tensor, int, int) {
    for (int64_t stride : tensor.strides()) {
      hash = base::hash_combine(hash, static_cast<uint64_t>(stride));
    }
  });
  return hash;
}

// Numbers of some size that no sum of has a simple form, in memory that lies like the tensor's.
at::Tensor numbers_like(const at::Tensor& tensor, double step) {
  const at::Tensor numbers = at::arange(tensor.numel(), tensor.options().dtype(at::kDouble)).mul_(step).sin_();
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(numbers.view(tensor.sizes()));
}

// Whether the kernel's sum has the bits of an addition, for parts of these sizes that lie so.
bool is_addition(const OpInfo& info, const std::vector<IValue>& parts, const at::Tensor& sum) {
  torch::jit::Stack stack = parts;
  bool has_overlap = false;
  double step = 0.7;
  for_each_tensor(parts, [&](const at::Tensor& tensor, int arg, int item) {
    has_overlap = has_overlap || !tensor.is_non_overlapping_and_dense();
    if (!has_overlap) {
      replace_tensor(stack[static_cast<size_t>(arg)], item, numbers_like(tensor, step += 0.6));
    }
  });
  if (has_overlap) {
    return false;
  }
  const at::Tensor before = numbers_like(sum, 0.3), in_kernel = before.clone();
  if (!info.row.adds_to(in_kernel, stack)) {
    return false;
  }
  info.op.callBoxed(stack);
  return at::equal(in_kernel, before.add(stack.back().toTensor()));
}

}  // namespace

bool may_add_in_kernel(const OpInfo& info, const CallPlan& plan) {
  return info.row.adds_to && (plan.tried_strides == 0 || plan.adds_in_kernel) && !plan.outputs[0].move &&
         !plan.outputs[0].hand_on;
}

bool add_in_kernel(const OpInfo& info, const CallPlan& plan, const std::vector<IValue>& parts, const at::Tensor& sum) {
  if (!may_add_in_kernel(info, plan)) {
    return false;
  }
  const uint64_t strides = strides_of(parts);
  if (plan.tried_strides == 0) {
    plan.tried_strides = strides;
    plan.adds_in_kernel = is_addition(info, parts, sum);
  }
  return plan.adds_in_kernel && plan.tried_strides == strides && info.row.adds_to(sum, parts);
}

}  // namespace tessera::dtensor
