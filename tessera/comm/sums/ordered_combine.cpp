#include "tessera/comm/sums/ordered_combine.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace tessera::comm {
namespace {

using layout::ReduceOp;

at::Tensor combined(const at::Tensor& total, const at::Tensor& next, ReduceOp op) {
  const bool is_bool = next.scalar_type() == at::kBool;
  switch (op) {
    case ReduceOp::kMax: return is_bool ? at::logical_or(total, next) : at::maximum(total, next);
    case ReduceOp::kMin: return is_bool ? at::logical_and(total, next) : at::minimum(total, next);
    case ReduceOp::kProd: return is_bool ? at::logical_and(total, next) : total.mul_(next);
    default: return is_bool ? at::logical_or(total, next) : total.add_(next);
  }
}

}  // namespace

void combine_in_order(const at::Tensor& output, const std::vector<at::Tensor>& values, ReduceOp op) {
  const auto wide = at::toOpMathType(output.scalar_type());
  at::Tensor total = values[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < values.size(); ++i) {
    total = combined(total, values[i].to(wide), op);
  }
  if (op == ReduceOp::kAvg) {
    divide(total, static_cast<int64_t>(values.size()));
  }
  output.detach().copy_(total);
}

void divide(const at::Tensor& tensor, int64_t count) {
  tensor.detach().div_(at::full({}, static_cast<double>(count), tensor.options()));
}

}  // namespace tessera::comm
