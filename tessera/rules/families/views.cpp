// Operators that regroup, reorder, add or remove dims.
#include "tessera/rules/families/families.h"

#include <numeric>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/squeeze.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

// Both sides of a view, dim by dim from the slowest: what one factor of each side has in common becomes a factor.
class Regrouping {
 public:
  Regrouping(FactorMap& map, c10::IntArrayRef from, c10::IntArrayRef to)
      : map_(map), from_{from, TensorFactors(from.size())}, to_{to, TensorFactors(to.size())} {}

  void run() {
    if (from_.sizes == to_.sizes) {
      from_.factors = to_.factors = map_.add_all(from_.sizes);
    } else if (c10::multiply_integers(from_.sizes) == 0) {
      block_rest(from_);
      block_rest(to_);
    } else {
      while (!from_.is_done() || !to_.is_done()) {
        step();
      }
    }
    map_.operands = {std::move(from_.factors)};
    map_.outputs = {std::move(to_.factors)};
  }

 private:
  struct Side {
    c10::IntArrayRef sizes;
    TensorFactors factors;
    size_t dim = 0;
    int64_t taken = 1;  // of the dim: the product of its factors so far

    bool is_done() const { return dim == sizes.size(); }
    bool is_one() const { return !is_done() && sizes[dim] == 1; }
    int64_t rest() const { return sizes[dim] / taken; }
    void take(int factor, int64_t extent) {
      factors[dim].push_back(factor);
      taken *= extent;
      if (taken == sizes[dim]) {
        next();
      }
    }
    void next() {
      ++dim;
      taken = 1;
    }
  };

  void step() {
    if (from_.is_one() && to_.is_one()) {
      const int factor = map_.add(1);
      from_.take(factor, 1);
      to_.take(factor, 1);
    } else if (from_.is_one()) {
      from_.next();
    } else if (to_.is_one()) {
      to_.next();
    } else {
      const int64_t common = std::gcd(from_.rest(), to_.rest());
      if (common == 1) {
        block_tangle();
        return;
      }
      const int factor = map_.add(common);
      from_.take(factor, common);
      to_.take(factor, common);
    }
  }

  // No factor in common, such as 3 x 4 -> 2 x 6: these dims stay whole, up to where both sides meet again.
  void block_tangle() {
    int64_t left = block_dim(from_);
    int64_t right = block_dim(to_);
    while (left != right) {
      left < right ? (left *= block_dim(from_)) : (right *= block_dim(to_));
    }
  }

  int64_t block_dim(Side& side) {
    const int64_t rest = side.rest();
    if (rest > 1) {
      side.factors[side.dim].push_back(map_.add(rest, false));
    }
    side.next();
    return rest;
  }

  void block_rest(Side& side) {
    while (!side.is_done()) {
      side.factors[side.dim] = {map_.add(side.sizes[side.dim], false)};
      side.next();
    }
  }

  FactorMap& map_;
  Side from_;
  Side to_;
};

FactorMap moving_map() {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  return map;
}

FactorMap view_map(const Call& call) {
  FactorMap map = moving_map();
  const auto& from = *call.spec(0);
  const auto& to = call.outputs.at(0).sizes;
  Regrouping(map, from.sizes, to).run();
  map.sizes = {{.arg = call.arg_index("size"), .output = 0}};
  if (!from.labels.empty()) {
    map.labels = {layout::view_labels(from.labels, from.sizes, to)};
  }
  return map;
}

// The local tensor's strides are its own: the sizes alone say what is meant.
void run_as_view(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  args.give(args.tensor("self").view(args["size"].toIntVector()));
}

FactorMap permuted_map(const Call& call, const std::vector<int64_t>& order) {
  FactorMap map = moving_map();
  map.operands = {map.add_all(call.spec(0)->sizes)};
  map.outputs.emplace_back();
  for (int64_t dim : order) {
    map.outputs[0].push_back(map.operands[0].at(dim));
  }
  return map;
}

FactorMap permute_map(const Call& call) {
  std::vector<int64_t> order = call.ints("dims");
  for (int64_t& dim : order) {
    dim = wrap_dim(dim, call.dim_of(0));
  }
  return permuted_map(call, order);
}

FactorMap swapped_map(const Call& call, int64_t a, int64_t b) {
  std::vector<int64_t> order(call.dim_of(0));
  std::iota(order.begin(), order.end(), 0);
  if (!order.empty()) {
    std::swap(order.at(a), order.at(b));
  }
  return permuted_map(call, order);
}

FactorMap transpose_map(const Call& call) {
  const int64_t ndim = call.dim_of(0);
  return swapped_map(call, wrap_dim(call.integer("dim0"), ndim), wrap_dim(call.integer("dim1"), ndim));
}

FactorMap t_map(const Call& call) { return swapped_map(call, 0, std::max<int64_t>(call.dim_of(0) - 1, 0)); }

FactorMap unsqueeze_map(const Call& call) {
  FactorMap map = moving_map();
  map.operands = {map.add_all(call.spec(0)->sizes)};
  map.outputs = map.operands;
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0) + 1);
  map.outputs[0].insert(map.outputs[0].begin() + dim, DimFactors());
  return map;
}

std::vector<int64_t> squeezed_dims(const Call& call) {
  const auto& sizes = call.spec(0)->sizes;
  const auto ndim = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> dims;
  if (call.has_arg("dim")) {
    if (const auto asked = call.ints("dim"); !asked.empty()) {
      dims = call.dims("dim", ndim);
    }
  } else {
    dims.resize(ndim);
    std::iota(dims.begin(), dims.end(), 0);
  }
  std::erase_if(dims, [&](int64_t dim) { return sizes[dim] != 1; });
  return dims;
}

FactorMap squeeze_map(const Call& call) {
  FactorMap map = moving_map();
  const auto& from = *call.spec(0);
  map.operands = {map.add_all(from.sizes)};
  map.outputs = map.operands;
  const std::vector<int64_t> dims = squeezed_dims(call);
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    map.operands[0][*dim].clear();
    map.outputs[0].erase(map.outputs[0].begin() + *dim);
  }
  if (!from.labels.empty()) {
    map.labels = {layout::view_labels(from.labels, from.sizes, call.outputs.at(0).sizes)};
  }
  return map;
}

// A dim that is one long here only must stay.
void run_squeeze(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const auto& sizes = call.operands[0]->sizes;
  const auto ndim = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> asked(ndim);
  std::iota(asked.begin(), asked.end(), 0);
  if (args.has("dim")) {
    const c10::IValue& dim = args["dim"];
    asked = dim.isInt() ? std::vector<int64_t>{dim.toInt()} : dim.toIntVector();
  }
  std::vector<int64_t> dims;
  for (int64_t dim : asked) {
    dim = wrap_dim(dim, ndim);
    if (ndim > 0 && sizes[dim] == 1) {
      dims.push_back(dim);
    }
  }
  args.give(at::squeeze(args.tensor("self"), dims));
}

void run_squeeze_copy(const LocalCall& call, torch::jit::Stack& stack) {
  run_squeeze(call, stack);
  stack.back() = stack.back().toTensor().clone();
}

FactorMap expand_map(const Call& call) {
  FactorMap map = moving_map();
  const auto& to = call.outputs.at(0).sizes;
  const auto& from = call.spec(0)->sizes;
  map.outputs = {map.add_all(to)};
  map.operands = {TensorFactors(map.outputs[0].end() - static_cast<int64_t>(from.size()), map.outputs[0].end())};
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != to[to.size() - from.size() + d]) {
      map.operands[0][d].clear();
    }
  }
  map.sizes = {{.arg = call.arg_index("size"), .output = 0}};
  return map;
}

// A dim that is repeated holds the copies one after the other.
FactorMap repeat_map(const Call& call) {
  FactorMap map = moving_map();
  const std::vector<int64_t> repeats = call.ints("repeats");
  const auto& from = call.spec(0)->sizes;
  const size_t added = repeats.size() - from.size();
  map.operands = {map.add_all(from)};
  map.outputs = {TensorFactors(repeats.size())};
  for (size_t d = 0; d < repeats.size(); ++d) {
    DimFactors dim = d < added ? DimFactors() : map.operands[0][d - added];
    if (repeats[d] != 1) {
      dim.insert(dim.begin(), map.add(repeats[d], false));
      map.block(dim);
    }
    map.outputs[0][d] = std::move(dim);
  }
  return map;
}

// Whether these strides lead through the whole tensor as its own do; those of a dim of one element lead nowhere.
bool is_identity(const layout::SpecData& whole, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                 int64_t offset) {
  if (sizes != whole.sizes || offset != 0) {
    return false;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && strides.at(d) != whole.strides[d]) {
      return false;
    }
  }
  return true;
}

FactorMap as_strided_map(const Call& call) {
  FactorMap map = moving_map();
  map.operands = {map.add_all(call.spec(0)->sizes)};
  if (is_identity(*call.spec(0), call.ints("size"), call.ints("stride"), call.integer("storage_offset"))) {
    map.outputs = map.operands;
    return map;
  }
  map.outputs = {map.add_all(call.ints("size"))};
  for (Factor& factor : map.factors) {
    factor.can_shard = false;
  }
  return map;
}

// Strides speak of the one-device program's storage: the whole tensor with its strides.
at::Tensor as_on_one_device(const layout::SpecData& whole, const at::Tensor& self) {
  return self.strides() == c10::IntArrayRef(whole.strides) && self.storage_offset() == 0
             ? self
             : at::empty_strided(whole.sizes, whole.strides, self.options()).copy_(self);
}

void run_as_strided(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const auto& whole = *call.operands[0];
  const at::Tensor self = args.tensor("self");
  const auto sizes = args["size"].toIntVector(), strides = args["stride"].toIntVector();
  const int64_t offset = args["storage_offset"].isNone() ? 0 : args["storage_offset"].toInt();
  if (is_identity(whole, sizes, strides, offset)) {
    args.give(self.alias());
    return;
  }
  args.give(as_on_one_device(whole, self).as_strided(sizes, strides, offset));
}

void run_as_strided_copy(const LocalCall& call, torch::jit::Stack& stack) {
  run_as_strided(call, stack);
  stack.back() = stack.back().toTensor().clone();
}

// A tensor with others at some places of its memory.
FactorMap as_strided_scatter_map(const Call& call) {
  FactorMap map;
  map.operands = {map.add_all(call.spec(0)->sizes), map.add_all(call.spec(1)->sizes)};
  map.outputs = {map.operands[0]};
  for (Factor& factor : map.factors) {
    factor.can_shard = false;
  }
  return map;
}

void run_as_strided_scatter(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  args["self"] = as_on_one_device(*call.operands[0], args.tensor("self"));
  args.run();
}

// A view through which writes reach the base; a gradient passes it.
Rule writable_view(Rule rule, View kind) {
  rule.exact = exact::kMoves;
  rule.view = kind;
  rule.carry = Carry::kInFirst;
  return rule;
}

void add_regroupings(RuleTable& table) {
  table.add("aten::view_copy", {.map = view_map});
  const Rule reshape = {.map = view_map, .exact = exact::kMoves, .carry = Carry::kInFirst, .reshapes = true};
  table.add("aten::_unsafe_view", reshape);
  table.add("aten::view", writable_view(reshape, View::kRegroup));
  Rule alias = writable_view(reshape, View::kRegroup);
  alias.local = run_as_view;
  table.add("aten::_reshape_alias", alias);
  table.add("aten::unsqueeze", writable_view({.map = unsqueeze_map}, View::kRegroup));
  table.add("aten::unsqueeze_copy", {.map = unsqueeze_map});
  const Rule squeeze = writable_view({.map = squeeze_map, .local = run_squeeze}, View::kRegroup);
  table.add_all({"aten::squeeze.dim", "aten::squeeze.dims"}, squeeze);
  Rule squeeze_all = squeeze;
  squeeze_all.carry = Carry::kNo;
  table.add("aten::squeeze", squeeze_all);
  table.add_all({"aten::squeeze_copy", "aten::squeeze_copy.dim", "aten::squeeze_copy.dims"},
                {.map = squeeze_map, .local = run_squeeze_copy});
}

// Views that a tensor becomes itself.
void add_in_place(RuleTable& table) {
  const auto in_place = [&](const char* op, const char* becomes) {
    table.add(op, {.special = Special::kViewInPlace, .becomes = becomes});
  };
  in_place("aten::as_strided_", "aten::as_strided");
  in_place("aten::squeeze_", "aten::squeeze");
  in_place("aten::squeeze_.dim", "aten::squeeze.dim");
  in_place("aten::squeeze_.dims", "aten::squeeze.dims");
  in_place("aten::t_", "aten::t");
  in_place("aten::transpose_", "aten::transpose.int");
  in_place("aten::unsqueeze_", "aten::unsqueeze");
}

}  // namespace

void add_view_rules(RuleTable& table) {
  add_regroupings(table);
  add_in_place(table);
  table.add("aten::permute", writable_view({.map = permute_map}, View::kPermute));
  table.add("aten::permute_copy", {.map = permute_map});
  table.add("aten::transpose.int", writable_view({.map = transpose_map}, View::kTranspose));
  table.add("aten::transpose_copy.int", {.map = transpose_map});
  table.add("aten::t", writable_view({.map = t_map}, View::kTurn));
  table.add("aten::t_copy", {.map = t_map});
  table.add("aten::expand", {.map = expand_map, .exact = exact::kMoves, .carry = Carry::kInFirst});
  table.add("aten::expand_copy", {.map = expand_map});
  table.add("aten::repeat", {.map = repeat_map, .exact = exact::kMoves});
  table.add("aten::as_strided", {.map = as_strided_map, .local = run_as_strided});
  table.add("aten::as_strided_scatter", {.map = as_strided_scatter_map, .local = run_as_strided_scatter});
  table.add("aten::as_strided_copy", {.map = as_strided_map, .local = run_as_strided_copy});
}

}  // namespace tessera::rules
