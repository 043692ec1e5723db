// Reads at given indices, and what joins or orders tensors along a dim.
//
// A dim that is looked up may be cut: each rank reads what it holds, zeros elsewhere, and the results add up.
#include "tessera/rules/families/families.h"

#include <ATen/ops/add.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

bool holds_all(const LocalCall& call, int64_t dim) {
  return call.operand_ranges[0][dim].size() == call.operands[0]->sizes[dim];
}

// The zeros of the output, for a rank that holds nothing of the looked up dim.
at::Tensor zeros_of_output(const LocalCall& call, const at::Tensor& like) {
  return at::zeros(sizes_of(call.output_ranges[0]), like.options());
}

FactorMap embedding_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  const TensorFactors weight = map.add_all(call.spec(0)->sizes);
  const TensorFactors indices = map.add_all(call.spec(1)->sizes);
  map.operands = {weight, indices};
  map.outputs = {indices};
  map.outputs[0].push_back(weight.at(1));
  return map;
}

void run_embedding(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  if (holds_all(call, 0)) {
    args.run();
    return;
  }
  const at::Tensor weight = args.tensor("weight");
  const layout::Range range = call.operand_ranges[0][0];
  const Window window = make_window(args.tensor("indices"), range, call.operands[0]->sizes[0], 0);
  args.give_value(range.size() == 0
                      ? zeros_of_output(call, weight)
                      : at::embedding(weight, window.index).masked_fill_(window.outside.unsqueeze(-1), 0));
}

// As a vocabulary that is cut adds zeros, so does a whole one: -0 becomes +0 everywhere.
void run_exact_embedding(const LocalCall& call, torch::jit::Stack& stack) {
  run_embedding(call, stack);
  stack.back() = at::add(stack.back().toTensor(), 0.0);
}

FactorMap embedding_backward_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  const TensorFactors indices = map.add_all(call.spec(1)->sizes);
  if (call.flag("scale_grad_by_freq")) {
    for (const DimFactors& dim : indices) {
      map.block(dim);
    }
  }
  const DimFactors feature = {map.add(call.spec(0)->sizes.back())};
  map.operands = {indices, indices};
  map.operands[0].push_back(feature);
  map.outputs = {{{map.add(call.integer("num_weights"))}, feature}};
  map.sizes = {{.arg = call.arg_index("num_weights"), .output = 0, .dim = 0}};
  return map;
}

void run_embedding_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const layout::Range range = call.output_ranges[0][0];
  const int64_t size = call.outputs[0]->sizes[0];
  if (range.size() == size) {
    args.run();
    return;
  }
  const at::Tensor indices = args.tensor("indices");
  const Window window = make_window(indices, range, size, range.size());
  const at::Tensor index = window.index.masked_fill(indices.eq(args["padding_idx"].toInt()), range.size());
  const at::Tensor grad = at::embedding_dense_backward(args.tensor("grad_output"), index, range.size() + 1, -1,
                                                       args["scale_grad_by_freq"].toBool());
  args.give_value(without_spare(grad, {0}));
}

FactorMap gather_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  const auto& self = call.spec(0)->sizes;
  const auto& index = call.spec(1)->sizes;
  map.operands = {map.add_all(self), map.add_all(index)};
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
  for (size_t d = 0; d < index.size() && self.size() == index.size();
       ++d) {  // else one of them has no dims, or no elements
    if (static_cast<int64_t>(d) != dim && self[d] == index[d]) {
      map.operands[1][d] = map.operands[0][d];
    } else if (static_cast<int64_t>(d) != dim) {
      map.block(map.operands[0][d]);
      map.block(map.operands[1][d]);
    }
  }
  map.outputs = {map.operands[1]};
  return map;
}

void run_gather(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t dim = wrap_dim(args["dim"].toInt(), self.dim());
  if (self.dim() == 0 || holds_all(call, dim)) {
    args.run();
    return;
  }
  const layout::Range range = call.operand_ranges[0][dim];
  const Window window = make_window(args.tensor("index"), range, call.operands[0]->sizes[dim], 0);
  args.give_value(range.size() == 0 ? zeros_of_output(call, self)
                                    : at::gather(self, dim, window.index).masked_fill_(window.outside, 0));
}

FactorMap index_select_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  map.operands = {map.add_all(call.spec(0)->sizes), map.add_all(call.spec(1)->sizes)};
  map.outputs = {map.operands[0]};
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
  if (call.dim_of(0) > 0) {
    map.outputs[0][dim] = call.dim_of(1) > 0 ? map.operands[1][0] : DimFactors();
  } else if (call.dim_of(1) > 0) {
    map.operands[1][0] = {};
  }
  return map;
}

void run_index_select(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t dim = wrap_dim(args["dim"].toInt(), self.dim());
  if (self.dim() == 0 || holds_all(call, dim)) {
    args.run();
    return;
  }
  const layout::Range range = call.operand_ranges[0][dim];
  const Window window = make_window(args.tensor("index"), range, call.operands[0]->sizes[dim], 0);
  std::vector<int64_t> shape(self.dim(), 1);
  shape[dim] = window.outside.numel();
  args.give_value(range.size() == 0
                      ? zeros_of_output(call, self)
                      : at::index_select(self, dim, window.index).masked_fill_(window.outside.view(shape), 0));
}

// Several tensors of one size, one after the other: the blocks of an interleaved dim (the gradients of Q, K and V),
// unless it counts samples or positions.
bool are_blocks(const Call& call, int64_t dim) {
  const auto is_block = [&](const Operand& operand) {
    const layout::SpecData& spec = *operand.spec;
    return spec.sizes == call.spec(0)->sizes && (spec.labels.empty() || !layout::is_labelled(spec.labels[dim]));
  };
  return call.operands.size() > 1 && call.dim_of(0) == static_cast<int64_t>(call.outputs.at(0).sizes.size()) &&
         std::all_of(call.operands.begin(), call.operands.end(), is_block);
}

// The tensors share all dims but `dim`. Legacy: a tensor of sizes [0] joins nothing.
FactorMap cat_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kJoint;
  const auto& to = call.outputs.at(0).sizes;
  const int64_t dim = wrap_dim(call.integer("dim"), static_cast<int64_t>(to.size()));
  TensorFactors out = map.add_all(to);
  map.block(out.at(dim));
  if (are_blocks(call, dim)) {
    const int block = map.add(call.spec(0)->sizes[dim]);
    map.factors[block].may_interleave = true;
    map.operands.assign(call.operands.size(), out);
    for (TensorFactors& operand : map.operands) {
      operand[dim] = {block};
    }
    out[dim] = {map.add(static_cast<int64_t>(call.operands.size()), false), block};
    map.outputs = {out};
    return map;
  }
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const auto& from = call.spec(i)->sizes;
    if (from.size() != to.size()) {
      map.operands.push_back(map.add_all(from));
      map.block(map.operands.back()[0]);
      continue;
    }
    map.operands.push_back(out);
    map.operands.back()[dim] = {map.add(from[dim], false)};
  }
  map.outputs = {out};
  return map;
}

FactorMap stack_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kJoint;
  const TensorFactors item = map.add_all(call.spec(0)->sizes);
  map.operands.assign(call.operands.size(), item);
  map.outputs = {item};
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0) + 1);
  const auto count = static_cast<int64_t>(call.operands.size());
  map.outputs[0].insert(map.outputs[0].begin() + dim, DimFactors{map.add(count, false)});
  return map;
}

FactorMap topk_map(const Call& call) {
  FactorMap map;
  map.operands = {map.add_all(call.spec(0)->sizes)};
  TensorFactors out = map.operands[0];
  if (!out.empty()) {
    const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
    map.block(out[dim]);
    out[dim] = {map.add(call.integer("k"), false)};
  }
  map.outputs = {out, out};
  return map;
}

// Operand 0 elementwise against the whole of the others.
FactorMap against_whole_map(const Call& call) {
  FactorMap map;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    map.operands.push_back(map.add_all(call.spec(i)->sizes));
    for (const DimFactors& dim : map.operands.back()) {
      if (i > 0) {
        map.block(dim);
      }
    }
  }
  map.outputs = {map.operands[0]};
  return map;
}

FactorMap bucketize_map(const Call& call) {
  FactorMap map = against_whole_map(call);
  map.dtypes = {call.flag("out_int32") ? c10::kInt : c10::kLong};
  return map;
}

// Values against sorted rows, which stay whole: one row for all values, or one for each row of values.
FactorMap searchsorted_map(const Call& call) {
  FactorMap map;
  map.dtypes = {call.flag("out_int32") ? c10::kInt : c10::kLong};
  const TensorFactors values = map.add_all(call.spec(call.operand_of("self"))->sizes);
  const auto& sizes = call.spec(0)->sizes;
  TensorFactors sorted(values.begin(), values.begin() + static_cast<int64_t>(sizes.size()) - 1);
  sorted.push_back({map.add(sizes.back(), false)});
  map.operands.assign(call.operands.size(), sorted);
  map.set_operand(call, "self", values);
  map.outputs = {values};
  return map;
}

// The place of one number among the whole of the operands, or whether it is there.
FactorMap place_of_number_map(const Call& call) {
  FactorMap map;
  map.dtypes = {!call.has_arg("out_int32") ? c10::kBool : call.flag("out_int32") ? c10::kInt : c10::kLong};
  for (const Operand& operand : call.operands) {
    map.operands.push_back(map.add_all(operand.spec->sizes));
  }
  for (Factor& factor : map.factors) {
    factor.can_shard = false;
  }
  map.outputs = {{}};
  return map;
}

// The elements of a flat view, which stays whole.
FactorMap take_map(const Call& call) {
  FactorMap map;
  map.operands = {map.add_all(call.spec(0)->sizes), map.add_all(call.spec(1)->sizes)};
  for (const DimFactors& dim : map.operands[0]) {
    map.block(dim);
  }
  map.outputs = {map.operands[1]};
  return map;
}

// Writes into the tensor as if it were flat.
void decompose_put(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self");
  const c10::List<std::optional<at::Tensor>> index({args.tensor("index").reshape(-1)});
  args.give(at::index_put(self.reshape(-1), index, args.tensor("source").reshape(-1), args["accumulate"].toBool())
                .view(self.sizes()));
}

// In place where no cut of self would do: the new value is computed, and copied.
void decompose_in_place(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::Tensor self = StackArgs(op, stack).tensor("self");
  c10::Dispatcher::singleton().findSchemaOrThrow(functional_name(op.operator_name().name).c_str(), "").callBoxed(stack);
  stack.back() = self.copy_(stack.back().toTensor());
}

// Rows that are looked up and longer than `max_norm` are shortened.
void decompose_embedding_renorm(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  at::Tensor self = args.tensor("self");
  const double most = args["max_norm"].toDouble();
  const at::Tensor is_read = self.new_zeros({self.size(0)}).index_fill(0, args.tensor("indices").flatten(), 1);
  const at::Tensor length = self.norm(args["norm_type"].toDouble(), 1);
  const at::Tensor is_long = at::logical_and(is_read, length > most);
  args.give(self.mul_(at::where(is_long, most / (length + 1e-7), 1.0).to(self.scalar_type()).unsqueeze(1)));
}

// Everything whole.
FactorMap replicated_map(const Call& call) {
  FactorMap map;
  for (const Operand& operand : call.operands) {
    map.operands.push_back(map.add_all(operand.spec->sizes));
  }
  for (const Output& output : call.outputs) {
    map.outputs.push_back(map.add_all(output.sizes));
  }
  for (Factor& factor : map.factors) {
    factor.can_shard = false;
  }
  return map;
}

}  // namespace

void add_indexing_rules(RuleTable& table) {
  table.add("aten::embedding",
            {.map = embedding_map,
             .local = run_embedding,
             .shape = ShapeSource::kFactors,
             .exact = {{.local = run_exact_embedding, .adds_zeros = true, .takes_narrow = exact::always}}});
  table.add("aten::embedding_dense_backward",
            {.map = embedding_backward_map,
             .local = run_embedding_backward,
             .shape = ShapeSource::kFactors,
             .exact = {{.node = exact::embedding_node, .sample = exact::embedding_sample}},
             .carry = Carry::kInFirst});
  table.add("aten::gather",
            {.map = gather_map, .local = run_gather, .exact = {{.adds_zeros = true, .takes_narrow = exact::always}}});
  table.add("aten::index_select", {.map = index_select_map, .local = run_index_select, .shape = ShapeSource::kFactors});
  table.add("aten::cat", {.map = cat_map, .exact = exact::kMoves, .carry = Carry::kCat});
  table.add("aten::stack", {.map = stack_map, .exact = exact::kMoves});
  table.add("aten::topk", {.map = topk_map, .chooses = true});
  table.add_all({"aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar"}, {.map = against_whole_map});
  table.add("aten::bucketize.Tensor", {.map = bucketize_map, .shape = ShapeSource::kFactors});
  table.add("aten::searchsorted.Tensor", {.map = searchsorted_map, .shape = ShapeSource::kFactors});
  table.add_all({"aten::bucketize.Scalar", "aten::isin.Scalar_Tensor", "aten::searchsorted.Scalar"},
                {.map = place_of_number_map, .shape = ShapeSource::kFactors});
  table.add("aten::masked_scatter", {.map = replicated_map});
  table.add("aten::put", {.map = nullptr, .decompose = decompose_put});
  table.add_all({"aten::masked_scatter_", "aten::put_", "aten::renorm_"},
                {.map = nullptr, .decompose = decompose_in_place});
  table.add("aten::embedding_renorm_", {.map = nullptr, .decompose = decompose_embedding_renorm});
  table.add("aten::linalg_qr", {.map = replicated_map, .caught = Caught::kLinearAlgebra});
  table.add("aten::take", {.map = take_map, .shape = ShapeSource::kFactors});
  table.add("aten::trace", {.map = [](const Call& call) { return parse_factors("(i,j)->();!i,!j", call); },
                            .shape = ShapeSource::kFactors});
}

}  // namespace tessera::rules
