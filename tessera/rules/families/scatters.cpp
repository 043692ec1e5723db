// Reads and writes through index tensors for several dims, and writes along one dim.
//
// A dim that is written to may be cut: writes to what other ranks hold go to a spare element and are dropped. Where
// writes add, the written values may be cut too: the rank that holds the first of them starts from self, the others
// from zeros.
#include "tessera/rules/families/families.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

bool is_mask(c10::ScalarType dtype) { return dtype == c10::kBool || dtype == c10::kByte; }

// Which dims are indexed, and where the dims of the indices stand in the result.
struct Indexed {
  std::vector<int64_t> dims;   // of self; index i is operand i + 1
  std::vector<int64_t> shape;  // of the indices, broadcast
  size_t position = 0;
};

template <typename SizesOf>
Indexed indexed_of(const std::vector<bool>& defined, SizesOf sizes_of_index) {
  Indexed result;
  for (size_t d = 0; d < defined.size(); ++d) {
    if (!defined[d]) {
      continue;
    }
    const c10::IntArrayRef sizes = sizes_of_index(result.dims.size());
    result.dims.push_back(static_cast<int64_t>(d));
    auto& shape = result.shape;
    shape.insert(shape.begin(), sizes.size() > shape.size() ? sizes.size() - shape.size() : 0, 1);
    for (size_t i = 1; i <= sizes.size(); ++i) {
      int64_t& size = shape[shape.size() - i];
      size = size == 1 ? sizes[sizes.size() - i] : size;
    }
  }
  const bool adjacent =
      !result.dims.empty() && result.dims.back() - result.dims.front() + 1 == static_cast<int64_t>(result.dims.size());
  result.position = adjacent ? result.dims.front() : 0;
  return result;
}

std::vector<bool> defined_indices(const c10::IValue& indices) {
  std::vector<bool> defined;
  for (const c10::IValue& index : indices.toListRef()) {
    defined.push_back(index.isTensor() && index.toTensor().defined());
  }
  return defined;
}

// The result of indexing self: its dims that are not indexed, with those of the indices at their position.
TensorFactors result_factors(const TensorFactors& self, const Indexed& indexed, const TensorFactors& index) {
  TensorFactors result;
  for (size_t d = 0; d < self.size(); ++d) {
    if (std::find(indexed.dims.begin(), indexed.dims.end(), static_cast<int64_t>(d)) == indexed.dims.end()) {
      result.push_back(self[d]);
    }
  }
  result.insert(result.begin() + static_cast<int64_t>(indexed.position), index.begin(), index.end());
  return result;
}

// The dims of a tensor of `sizes` that broadcasts to `to`.
TensorFactors broadcast_to(const FactorMap& map, const TensorFactors& to, c10::IntArrayRef sizes) {
  TensorFactors result(to.end() - static_cast<int64_t>(sizes.size()), to.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 && !result[d].empty() && map.factors[result[d].front()].extent != 1) {
      result[d].clear();
    }
  }
  return result;
}

Indexed indexed_of(const Call& call) {
  return indexed_of(defined_indices(call.arg("indices")),
                    [&](size_t i) { return c10::IntArrayRef(call.spec(i + 1)->sizes); });
}

FactorMap index_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  const Indexed indexed = indexed_of(call);
  const TensorFactors self = map.add_all(call.spec(0)->sizes);
  const TensorFactors index = map.add_all(indexed.shape);
  map.operands = {self};
  for (size_t i = 0; i < indexed.dims.size(); ++i) {
    map.operands.push_back(broadcast_to(map, index, call.spec(i + 1)->sizes));
  }
  map.outputs = {result_factors(self, indexed, index)};
  return map;
}

// One mask over the leading dims and one value: elementwise.
bool is_masked_fill(const Call& call) {
  return call.operands.size() == 3 && is_mask(call.spec(1)->dtype) && call.spec(2)->numel() == 1 &&
         defined_indices(call.arg("indices")).at(0);
}

FactorMap index_put_map(const Call& call) {
  FactorMap map;
  const TensorFactors self = map.add_all(call.spec(0)->sizes);
  map.outputs = {self};
  if (is_masked_fill(call)) {
    map.operands = {self, TensorFactors(self.begin(), self.begin() + call.dim_of(1)), TensorFactors(call.dim_of(2))};
    return map;
  }
  const Indexed indexed = indexed_of(call);
  const TensorFactors index = map.add_all(indexed.shape);
  for (const DimFactors& dim : index) {
    Factor& factor = map.factors[dim.front()];
    factor.can_shard = call.flag("accumulate") && factor.extent != 0;
  }
  map.operands = {self};
  for (size_t i = 0; i < indexed.dims.size(); ++i) {
    map.operands.push_back(broadcast_to(map, index, call.spec(i + 1)->sizes));
  }
  map.operands.push_back(
      broadcast_to(map, result_factors(self, indexed, index), call.spec(indexed.dims.size() + 1)->sizes));
  return map;
}

bool has_mask(const Call& call) {
  const int arg = call.arg_index("indices");
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [&](const Operand& operand) { return operand.arg == arg && is_mask(operand.spec->dtype); });
}

bool has_mask_to_expand(const Call& call) { return has_mask(call) && !is_masked_fill(call); }

// Masks become the indices of their true elements.
void expand_masks(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  c10::List<std::optional<at::Tensor>> expanded;
  for (const std::optional<at::Tensor>& index : args["indices"].toOptionalTensorVector()) {
    if (!index || !index->defined() || !is_mask(index->scalar_type())) {
      expanded.push_back(index);
      continue;
    }
    const at::Tensor found = at::nonzero(*index);
    for (int64_t d = 0; d < index->dim(); ++d) {
      expanded.push_back(std::optional<at::Tensor>(found.select(1, d)));
    }
  }
  args["indices"] = std::move(expanded);
  args.run();
}

// The indices of a local call as this rank sees them; `elsewhere(dim)` is what those outside of its runs become.
struct LocalIndices {
  Indexed indexed;
  c10::List<std::optional<at::Tensor>> list;
  at::Tensor outside;           // undefined if this rank holds every indexed dim
  std::vector<int64_t> partly;  // the indexed dims that it holds a part of
};

template <typename Elsewhere>
LocalIndices local_indices(const LocalCall& call, const c10::IValue& indices, Elsewhere elsewhere) {
  LocalIndices result;
  result.indexed =
      indexed_of(defined_indices(indices), [&](size_t i) { return c10::IntArrayRef(call.operands[i + 1]->sizes); });
  int64_t dim = 0;
  for (std::optional<at::Tensor> index : indices.toOptionalTensorVector()) {
    if (index && index->defined() && !is_mask(index->scalar_type())) {
      const layout::Range range = call.operand_ranges[0][dim];
      const int64_t size = call.operands[0]->sizes[dim];
      if (range.size() != size) {
        const Window window = make_window(*index, range, size, elsewhere(dim));
        index = window.index;
        result.outside = result.outside.defined() ? result.outside.logical_or(window.outside) : window.outside;
        result.partly.push_back(dim);
      }
    }
    result.list.push_back(index);
    ++dim;
  }
  return result;
}

void run_index(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor self = args.tensor("self");
  const LocalIndices local = local_indices(call, args["indices"], [](int64_t) { return 0; });
  if (!local.outside.defined()) {
    args.run();
    return;
  }
  for (int64_t dim : local.partly) {
    if (self.size(dim) == 0) {
      args.give_value(at::zeros(sizes_of(call.output_ranges[0]), self.options()));
      return;
    }
  }
  const auto behind =
      static_cast<int64_t>(call.outputs[0]->sizes.size() - local.indexed.position - local.indexed.shape.size());
  std::vector<int64_t> shape = local.outside.sizes().vec();
  shape.insert(shape.end(), behind, 1);
  args.give_value(at::index(self, local.list).masked_fill_(local.outside.reshape(shape), 0));
}

// Does this rank hold the first of the written values along every dim of the indices?
bool holds_first(const LocalCall& call, const Indexed& indexed) {
  for (size_t i = 0; i < indexed.dims.size(); ++i) {
    for (const layout::Range& range : call.operand_ranges[i + 1]) {
      if (range.begin != 0) {
        return false;
      }
    }
  }
  return true;
}

void run_index_put(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  at::Tensor self = args.tensor("self");
  const LocalIndices local = local_indices(call, args["indices"], [&](int64_t dim) { return self.size(dim); });
  const bool accumulate = args["accumulate"].toBool();
  const bool is_later = accumulate && !holds_first(call, local.indexed);
  if (local.partly.empty() && !is_later) {
    args.run();
    return;
  }
  self = with_spare(is_later ? at::zeros_like(self) : self, local.partly);
  args.give_value(without_spare(at::index_put(self, local.list, args.tensor("values"), accumulate), local.partly));
}

// Writes along one dim: (self, index[, values]) -> self. `index` has the dims of self (scatter), or one (index_add).
FactorMap write_map(const Call& call, bool adds) {
  FactorMap map;
  const auto& to = call.spec(0)->sizes;
  const TensorFactors self = map.add_all(to);
  map.operands = {self};
  map.outputs = {self};
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
  const int index = call.operand_of("index");
  const bool is_scatter = !call.name.starts_with("aten::index_");
  const auto& index_sizes = call.spec(index)->sizes;
  const int64_t count = index_sizes.empty() ? 1 : is_scatter ? index_sizes[dim] : index_sizes[0];
  const DimFactors written = {map.add(count, adds && count != 0)};
  for (size_t i = 1; i < call.operands.size(); ++i) {
    const auto& sizes = call.spec(i)->sizes;
    TensorFactors tensor(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      const bool along = is_scatter || static_cast<int>(i) != index ? static_cast<int64_t>(d) == dim : true;
      if (along && sizes[d] == count) {
        tensor[d] = written;
      } else if (!along && sizes.size() == to.size() && sizes[d] == to[d]) {
        tensor[d] = self[d];
      } else {
        tensor[d] = {map.add(sizes[d], false)};
        along ? map.block(written) : map.block(self.at(d));
      }
    }
    map.operands.push_back(std::move(tensor));
  }
  if (to.empty()) {
    for (Factor& factor : map.factors) {
      factor.can_shard = false;
    }
  }
  return map;
}

template <bool kAdds>
void run_write(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  at::Tensor self = args.tensor("self");
  const int64_t dim = wrap_dim(args["dim"].toInt(), self.dim());
  const bool is_scatter = !call.op->operator_name().name.starts_with("aten::index_");
  const bool holds_all = self.dim() == 0 || call.operand_ranges[0][dim].size() == call.operands[0]->sizes[dim];
  const auto& index_ranges = call.operand_ranges[1];
  const bool is_later = kAdds && !index_ranges.empty() && index_ranges[is_scatter ? dim : 0].begin != 0;
  if (holds_all && !is_later) {
    args.run();
    return;
  }
  const at::Tensor base = is_later ? at::zeros_like(self) : self;
  if (holds_all) {
    args["self"] = base;
    args.run();
    return;
  }
  const Window window =
      make_window(args.tensor("index"), call.operand_ranges[0][dim], call.operands[0]->sizes[dim], self.size(dim));
  const at::Tensor written = args.written();
  args["self"] = with_spare(base, {dim});
  args["index"] = window.index;
  if (args.has("out")) {
    args["out"] = at::empty_like(args.tensor("self"));
  }
  args.run();
  const at::Tensor result = without_spare(stack.back().toTensor(), {dim});
  stack.back() = written.defined() ? written.copy_(result) : result;
}

Rule write(bool adds) {
  return {.map = [adds](const Call& call) { return write_map(call, adds); },
          .local = adds ? run_write<true> : run_write<false>};
}

// A mask takes as many elements as it has ones, which every rank would have to count.
bool has_no_mask(const Call& call) {
  return std::none_of(call.operands.begin() + 1, call.operands.end(), [](const Operand& index) {
    return index.spec->dtype == c10::ScalarType::Bool || index.spec->dtype == c10::ScalarType::Byte;
  });
}

// The gradient of `table[ids]`, or of `x[:, ids]`, which libtorch writes into zeros of its own. (Programs' writes are
// safe ones.)
bool is_gradient_of_lookup(const Call& call) {
  const bool has_one_index = call.operands.size() == 3;
  return call.flag("unsafe") && call.flag("accumulate") && has_one_index && has_no_mask(call);
}

// Zeros that take no memory.
at::Tensor zeros_of(const at::Tensor& like, c10::IntArrayRef sizes) { return like.new_zeros({}).expand(sizes); }

// The gradient of what chooses elements along a dim (max, topk, sort).
void scatter_chosen(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  at::Tensor grad = args.tensor("grad"), indices = args.tensor("indices");
  const std::vector<int64_t> sizes = args["sizes"].toIntVector();
  const int64_t dim = args["dim"].toInt();
  if (!args["keepdim"].toBool() && !sizes.empty()) {
    grad = grad.unsqueeze(dim);
    indices = indices.unsqueeze(dim);
  }
  args.give(at::scatter(zeros_of(grad, sizes), dim, indices, grad));
}

}  // namespace

void add_scatter_rules(RuleTable& table) {
  const Rule read = {.map = index_map, .local = run_index, .decompose = expand_masks, .decompose_when = has_mask};
  table.add("aten::index.Tensor",
            read.in_exact({.adds_zeros = true, .accepts = has_no_mask, .takes_narrow = exact::always}));
  table.add("aten::_unsafe_index.Tensor", read);
  table.add_all(
      {"aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl"},
      {.map = index_put_map, .local = run_index_put, .decompose = expand_masks, .decompose_when = has_mask_to_expand});
  table.add("aten::_index_put_impl_", {.exact = {{.decompose = exact::decompose_index_backward,
                                                  .accepts = is_gradient_of_lookup,
                                                  .takes_narrow = exact::always}},
                                       .carry = Carry::kInFirst});
  table.add("aten::scatter_add", write(true).in_exact(exact::kPerSample));
  table.add("aten::index_add", write(true));
  table.add_all({"aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce",
                 "aten::scatter_reduce.two", "aten::index_copy", "aten::index_fill.int_Scalar",
                 "aten::index_fill.int_Tensor", "aten::index_reduce"},
                write(false));
  table.add("aten::value_selecting_reduction_backward",
            {.caught = Caught::kOutOfPlace, .out_of_place = scatter_chosen});
}

}  // namespace tessera::rules
