// Sums in `exact` numerics: products, sums over dims, lookups that many tokens share.
#include "tessera/rules/exact/exact_kernels.h"

#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/kernels/rows/embedding.h"
#include "tessera/kernels/rows/norms.h"
#include "tessera/kernels/rows/rows.h"
#include "tessera/sums/lattice.h"
#include "tessera/rules/engine/dispatch_floats.h"
#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/equation.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/narrow.h"
#include "tessera/rules/exact/products.h"

namespace tessera::rules::exact {

namespace {

using c10::IValue;
using kernels::Rows;

const c10::OperatorHandle& op_of(const ExactCall& call) { return *call.local->op; }

const IValue& argument(const ExactCall& call, c10::ArrayRef<IValue> args, const char* name) {
  return args[*op_of(call).schema().argumentIndexWithName(name)];
}

// [batch, rows, columns] of a tensor, its dims in `order` (empty: as they are) with the groups flattened.
at::Tensor grouped(const at::Tensor& tensor, const std::vector<int64_t>& order, size_t batch, size_t rows) {
  const at::Tensor ordered = order.empty() ? tensor : tensor.permute(order);
  const c10::IntArrayRef sizes = ordered.sizes();
  const auto extent = [&](size_t begin, size_t end) { return c10::multiply_integers(sizes.slice(begin, end - begin)); };
  return ordered.reshape({extent(0, batch), extent(batch, batch + rows), extent(batch + rows, sizes.size())});
}

struct Operands {
  const Equation& equation;
  at::Tensor a, b;  // [batch, rows, summed], [batch, summed, columns]
};

Operands operands_of(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const Equation& equation = Equation::of(argument(call, args, "equation").toStringRef());
  const size_t batch = equation.batch.size();
  return {equation, grouped(args[0].toTensor(), equation.order_a, batch, equation.rows.size()),
          grouped(args[1].toTensor(), equation.order_b, batch, equation.summed.size())};
}

std::vector<int64_t> sizes_by_role(const Equation& equation, const at::Tensor& a, const at::Tensor& b) {
  std::vector<int64_t> sizes;
  for (char letter : equation.batch + equation.rows) {
    sizes.push_back(a.size(static_cast<int64_t>(equation.a.find(letter))));
  }
  for (char letter : equation.columns) {
    sizes.push_back(b.size(static_cast<int64_t>(equation.b.find(letter))));
  }
  return sizes;
}

// The reduced dims of a sum, and the others.
struct Split {
  std::vector<int64_t> reduced, kept;
};

Split split_dims(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const int64_t ndim = args[0].toTensor().dim();
  std::vector<char> is_reduced(ndim, 1);
  if (op_of(call).schema().argumentIndexWithName("dim") && !args[1].isNone() && !args[1].toIntVector().empty()) {
    is_reduced.assign(ndim, 0);
    for (int64_t dim : args[1].toIntVector()) {
      is_reduced[wrap_dim(dim, ndim)] = 1;
    }
  }
  Split split;
  for (int64_t d = 0; d < ndim; ++d) {
    (is_reduced[d] ? split.reduced : split.kept).push_back(d);
  }
  return split;
}

// [kept..., reduced...] flattened to [rows, n].
at::Tensor rows_to_sum(const at::Tensor& tensor, const Split& split, bool tokens_first) {
  std::vector<int64_t> order = tokens_first ? split.reduced : split.kept;
  const std::vector<int64_t>& rest = tokens_first ? split.kept : split.reduced;
  const size_t first = order.size();
  order.insert(order.end(), rest.begin(), rest.end());
  const at::Tensor ordered = tensor.permute(order).contiguous();
  return ordered.view(
      {c10::multiply_integers(ordered.sizes().slice(0, first)), c10::multiply_integers(ordered.sizes().slice(first))});
}

at::Tensor widened_to_result(const ExactCall& call, const at::Tensor& tensor) {
  return tensor.to(sum_dtype(call.local->outputs.at(0)->dtype));
}

}  // namespace

at::Tensor contract_node(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const Operands operands = operands_of(call, args);
  const Equation& equation = operands.equation;
  const at::Tensor out = at::empty({operands.a.size(0), operands.a.size(1), operands.b.size(2)},
                                   operands.a.options().dtype(sum_dtype(operands.a.scalar_type())));
  run_products(operands.a, operands.b, out, call.leaf, /*accumulate=*/false);
  const at::Tensor shaped = out.view(sizes_by_role(equation, args[0].toTensor(), args[1].toTensor()));
  return equation.order_out.empty() ? shaped : shaped.permute(equation.order_out).contiguous();
}

void contract_sample(const ExactCall& call, c10::ArrayRef<IValue> args, const at::Tensor& onto) {
  const Operands operands = operands_of(call, args);
  const Equation& equation = operands.equation;
  const std::string roles = equation.batch + equation.rows + equation.columns;
  std::vector<int64_t> order;
  for (char letter : roles) {
    order.push_back(static_cast<int64_t>(equation.out.find(letter)));
  }
  const at::Tensor out = grouped(onto, order, equation.batch.size(), equation.rows.size());
  run_products(operands.a, operands.b, out, /*leaf=*/0, /*accumulate=*/true);
  if (!out.is_alias_of(onto)) {  // rows and columns of the product stand among each other in the result
    const at::Tensor target = onto.permute(order);
    target.copy_(out.view(target.sizes()));
  }
}

// A sum of one term, so that -0 becomes +0 as in any other. (libtorch's signs depend on the sizes.)
void run_outer_product(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const size_t count = call.op->schema().arguments().size();
  const c10::ArrayRef<IValue> given(stack.data() + (stack.size() - count), count);
  args.give_value(contract_node({&call, /*leaf=*/0}, given).to(call.outputs.at(0)->dtype));
}

at::Tensor sum_node(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const Split split = split_dims(call, args);
  const at::Tensor self = args[0].toTensor();
  const at::Tensor rows = rows_to_sum(widened_to_result(call, self), split, /*tokens_first=*/false);
  std::vector<int64_t> sizes;
  const bool keeps = op_of(call).schema().argumentIndexWithName("keepdim") && argument(call, args, "keepdim").toBool();
  for (int64_t d = 0; d < self.dim(); ++d) {
    const bool is_kept = std::find(split.kept.begin(), split.kept.end(), d) != split.kept.end();
    if (is_kept || keeps) {
      sizes.push_back(is_kept ? self.size(d) : 1);
    }
  }
  const at::Tensor out = at::empty(sizes, rows.options());
  dispatch_floats(rows, "sum", [&]<typename T>() {
    kernels::row_sum<T>({rows.size(0), rows.size(1)}, std::max<int64_t>(call.leaf, 1),
                        {rows.const_data_ptr<T>(), rows.stride(0)}, out.data_ptr<T>());
  });
  return out;
}

void sum_sample(const ExactCall& call, c10::ArrayRef<IValue> args, const at::Tensor& onto) {
  const Split split = split_dims(call, args);
  const at::Tensor tokens = rows_to_sum(widened_to_result(call, args[0].toTensor()), split, /*tokens_first=*/true);
  dispatch_floats(tokens, "sum", [&]<typename T>() {
    kernels::add_column_sum<T>({1, tokens.size(0)}, tokens.size(1), {tokens.const_data_ptr<T>(), tokens.stride(0)},
                               onto.data_ptr<T>());
  });
}

namespace {

// Adds the gradients of the tokens [begin, end), in their order, onto the rows of the table that they read.
void add_tokens(const ExactCall& call, c10::ArrayRef<IValue> args, const layout::Range& tokens,
                const at::Tensor& onto) {
  const layout::Range held = call.local->output_ranges[0][0];
  const int64_t n = args[0].toTensor().size(-1);
  const at::Tensor grad =
      widened(args[0].toTensor().reshape({args[1].toTensor().numel(), n}).narrow(0, tokens.begin, tokens.size()))
          .contiguous();
  const at::Tensor ids = args[1].toTensor().reshape({-1}).narrow(0, tokens.begin, tokens.size()).to(at::kLong);
  const at::Tensor known = at::where(ids.eq(argument(call, args, "padding_idx").toInt()), -1, ids).contiguous();
  dispatch_floats(grad, "embedding_dense_backward", [&]<typename T>() {
    kernels::add_embedding_gradient<T>({1, known.numel()}, n, known.const_data_ptr<int64_t>(), {held.begin, held.end},
                                       {grad.const_data_ptr<T>(), n}, {onto.data_ptr<T>(), n});
  });
}

// The tree over the leaves [begin, end) of `tokens` tokens.
at::Tensor sum_of_leaves(const ExactCall& call, c10::ArrayRef<IValue> args, const sums::Node& leaves, int64_t tokens,
                         const at::Tensor& zeros) {
  if (leaves.size() > 1) {
    const int64_t middle = leaves.begin + sums::left_size(leaves.size());
    return sum_of_leaves(call, args, {leaves.begin, middle}, tokens, zeros) +
           sum_of_leaves(call, args, {middle, leaves.end}, tokens, zeros);
  }
  const at::Tensor sum = zeros.clone();
  add_tokens(call, args, {leaves.begin * call.leaf, std::min(leaves.end * call.leaf, tokens)}, sum);
  return sum;
}

}  // namespace

at::Tensor embedding_node(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const at::Tensor grad = args[0].toTensor();
  const layout::Range held = call.local->output_ranges[0][0];
  const at::Tensor zeros = at::zeros({held.size(), grad.size(-1)}, grad.options().dtype(sum_dtype(grad.scalar_type())));
  const int64_t tokens = args[1].toTensor().numel();
  return tokens == 0 ? zeros : sum_of_leaves(call, args, {0, (tokens + call.leaf - 1) / call.leaf}, tokens, zeros);
}

void embedding_sample(const ExactCall& call, c10::ArrayRef<IValue> args, const at::Tensor& onto) {
  add_tokens(call, args, {0, args[1].toTensor().numel()}, onto);
}

// That of a lookup along one dim, whose indices may count from the end, into zeros that nobody else has.
void decompose_index_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const auto indices = args["indices"].toListRef();
  const auto found = std::find_if(indices.begin(), indices.end(),
                                  [](const IValue& index) { return index.isTensor() && index.toTensor().defined(); });
  const at::Tensor self = args.tensor("self"), index = found->toTensor();
  const int64_t dim = found - indices.begin(), rows = self.size(dim);
  const at::Tensor ids = at::where(index < 0, index + rows, index);
  // As a table whose rows are the other dims; those of a vector have one element.
  std::vector<int64_t> behind(static_cast<size_t>(ids.dim())), in_front(behind.size());
  std::iota(behind.begin(), behind.end(), dim);
  std::iota(in_front.begin(), in_front.end(), 0);
  const at::Tensor grad = args.tensor("values").unsqueeze(-1).movedim(behind, in_front);
  const at::Tensor table = at::embedding_dense_backward(grad.flatten(ids.dim()), ids, rows, /*padding_idx=*/-1,
                                                        /*scale_grad_by_freq=*/false);
  args.give_value(table.unflatten(1, grad.sizes().slice(behind.size())).squeeze(-1).movedim(0, dim));
}

void decompose_sum(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  at::Tensor sum = args.tensor("self");
  std::vector<int64_t> dims;
  if (args.has("dim") && !args["dim"].isNone()) {
    dims = args["dim"].toIntVector();
  }
  if (dims.empty()) {
    for (int64_t d = 0; d < sum.dim(); ++d) {
      dims.push_back(d);
    }
  }
  const bool keeps = args.has("keepdim") && args["keepdim"].toBool();
  for (int64_t& dim : dims) {
    dim = wrap_dim(dim, sum.dim());
  }
  std::sort(dims.begin(), dims.end());
  // The innermost dim of several elements, then the others, again as the rule decides.
  const auto inner = std::find_if(dims.rbegin(), dims.rend(), [&](int64_t dim) { return sum.size(dim) != 1; });
  const auto dtype = args["dtype"].toOptional<c10::ScalarType>();
  sum = at::sum(sum, *inner, /*keepdim=*/true, dtype);
  sum = at::sum(sum, dims, /*keepdim=*/true, dtype);
  args.give_value(keeps ? sum : sum.squeeze(dims));
}

void decompose_mean(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self");
  std::vector<int64_t> dims;
  if (args.has("dim") && !args["dim"].isNone()) {
    dims = args["dim"].toIntVector();
  }
  int64_t count = 1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const bool reduced = dims.empty() || std::any_of(dims.begin(), dims.end(),
                                                     [&](int64_t dim) { return wrap_dim(dim, self.dim()) == d; });
    if (reduced) {
      count *= self.size(d);
    }
  }
  const bool keeps = args.has("keepdim") && args["keepdim"].toBool();
  args.give_value(at::div(at::sum(self, dims, keeps, args["dtype"].toOptional<c10::ScalarType>()), count));
}

void decompose_norm(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self");
  std::vector<int64_t> dims;
  if (args.has("dim") && !args["dim"].isNone()) {
    dims = args["dim"].toIntVector();
  }
  const bool keeps = args.has("keepdim") && args["keepdim"].toBool();
  args.give_value(at::sqrt(at::sum(at::mul(self, self), dims, keeps)));
}

void decompose_mse_loss(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor difference = args.tensor("self") - args.tensor("target"), each = at::mul(difference, difference);
  const int64_t reduction = args["reduction"].toInt();
  args.give_value(reduction == at::Reduction::None   ? each
                  : reduction == at::Reduction::Mean ? at::mean(each)
                                                     : at::sum(each));
}

void decompose_mse_loss_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self"), difference = self - args.tensor("target");
  const double scale =
      args["reduction"].toInt() == at::Reduction::Mean ? 2.0 / static_cast<double>(difference.numel()) : 2.0;
  args.give_value(at::mul(at::mul(difference, scale), args.tensor("grad_output")));
}

}  // namespace tessera::rules::exact
