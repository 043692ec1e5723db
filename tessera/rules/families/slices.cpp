// Operators that take, put back, pad or reverse parts of dims: what they touch stays whole.
#include "tessera/rules/families/families.h"

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

// One operand and one output that agree in all dims but some, which stay whole: map them, then change `outputs[0]`.
FactorMap same_map(const Call& call, size_t operand = 0) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  map.operands = {map.add_all(call.spec(operand)->sizes)};
  map.outputs = map.operands;
  return map;
}

// Dim `dim` of the output is a part of that of the operand.
void cut_dim(FactorMap& map, int64_t dim, int64_t size) {
  map.block(map.operands[0][dim]);
  map.outputs[0][dim] = {map.add(size, false)};
}

struct Slice {
  int64_t dim = 0;
  int64_t start = 0;
  int64_t length = 0;
  int64_t step = 1;
  bool is_whole = false;
  int64_t blocks = 1;  // of the dim, of which the slice is one; 1 if it is not
};

// The slice that a call asks for, of a dim of the given tensor sizes.
Slice slice_of(const Call& call, c10::IntArrayRef sizes) {
  Slice slice;
  slice.dim = wrap_dim(call.integer("dim"), static_cast<int64_t>(sizes.size()));
  const int64_t size = sizes[slice.dim];
  const auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  slice.start = clamped(call.integer("start", 0));
  const int64_t end = std::max(slice.start, clamped(call.integer("end", size)));
  slice.step = call.integer("step", 1);
  slice.length = (end - slice.start + slice.step - 1) / slice.step;
  slice.is_whole = slice.start == 0 && slice.length == size && slice.step == 1;
  const bool is_block =
      slice.step == 1 && slice.length > 0 && size % slice.length == 0 && slice.start % slice.length == 0;
  slice.blocks = is_block ? size / slice.length : 1;
  return slice;
}

FactorMap slice_map(const Call& call) {
  const auto& from = *call.spec(0);
  const Slice slice = slice_of(call, from.sizes);
  FactorMap map = same_map(call);
  if (slice.is_whole) {
    return map;
  }
  if (slice.blocks > 1) {
    map.operands[0][slice.dim] = {map.add(slice.blocks, false), map.add(slice.length)};
    map.outputs[0][slice.dim] = {map.operands[0][slice.dim].back()};
  } else {
    cut_dim(map, slice.dim, slice.length);
  }
  if (!from.labels.empty()) {
    map.labels = {layout::slice_labels(from.labels, from.sizes, slice.dim, slice.start, slice.length, slice.step)};
  }
  return map;
}

// If the sliced dim is interleaved, `part` is a block of it: where this rank's part of the block lies in the rank's
// part of the dim, which has the sizes `held`.
void set_block(StackArgs& args, const layout::SpecData& whole, const layout::SpecData& part, c10::IntArrayRef held) {
  const int64_t dim = wrap_dim(args["dim"].toInt(), whole.ndim());
  const int64_t size = whole.sizes[dim], length = part.sizes[dim];
  if (length == size || whole.blocks_of(dim) == 1) {
    return;
  }
  const int64_t start = args["start"].isNone() ? 0 : args["start"].toInt();
  const int64_t index = (start < 0 ? start + size : start) / length, step = held[dim] / (size / length);
  args["start"] = index * step;
  args["end"] = (index + 1) * step;
}

void run_slice(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  if (call.operands[0]->is_interleaved()) {
    set_block(args, *call.operands[0], *call.outputs[0], args.tensor("self").sizes());
  }
  args.run();
}

void run_slice_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  if (call.outputs[0]->is_interleaved()) {
    set_block(args, *call.outputs[0], *call.operands[0], args["input_sizes"].toIntVector());
  }
  args.run();
}

FactorMap select_map(const Call& call) {
  FactorMap map = same_map(call);
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
  map.block(map.operands[0][dim]);
  map.outputs[0].erase(map.outputs[0].begin() + dim);
  return map;
}

// split, unbind: each output is a part of one dim, which unbind drops.
FactorMap parts_map(const Call& call) {
  const auto& from = *call.spec(0);
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
  const bool drops = call.outputs.empty() || call.outputs[0].sizes.size() < from.sizes.size();
  FactorMap map = same_map(call);
  const auto count = static_cast<int64_t>(call.outputs.size());
  const auto is_block = [&](const Output& output) { return output.sizes[dim] * count == from.sizes[dim]; };
  const bool are_equal = !drops && count > 1 && std::all_of(call.outputs.begin(), call.outputs.end(), is_block);
  map.block(map.operands[0][dim]);
  map.outputs.assign(call.outputs.size(), map.operands[0]);
  const DimFactors block{are_equal ? map.add(from.sizes[dim] / count) : -1};
  if (are_equal) {
    map.operands[0][dim] = {map.add(count, false), block[0]};
  }
  int64_t start = 0;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (drops) {
      map.outputs[i].erase(map.outputs[i].begin() + dim);
      continue;
    }
    const int64_t length = call.outputs[i].sizes[dim];
    map.outputs[i][dim] = are_equal ? block : DimFactors{map.add(length, false)};
    if (!from.labels.empty()) {
      map.labels.push_back(layout::slice_labels(from.labels, from.sizes, dim, start, length, 1));
    }
    start += length;
  }
  return map;
}

// The parts of an interleaved dim, as long as there is of each block here; nothing where the dim is cut otherwise.
std::optional<std::vector<at::Tensor>> interleaved_parts(const LocalCall& call, StackArgs& args) {
  const layout::SpecData& whole = *call.operands[0];
  const int64_t dim = wrap_dim(args["dim"].toInt(), whole.ndim());
  if (whole.blocks_of(dim) == 1) {
    return std::nullopt;
  }
  const at::Tensor self = args.tensor("self");
  const auto count = static_cast<int64_t>(call.outputs.size());
  return self.split_with_sizes(std::vector<int64_t>(count, self.size(dim) / count), dim);
}

void run_parts(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  auto parts = interleaved_parts(call, args);
  parts ? args.give(std::move(*parts)) : args.run();
}

void run_copied_parts(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  auto parts = interleaved_parts(call, args);
  if (!parts) {
    args.run();
    return;
  }
  for (at::Tensor& part : *parts) {
    part = part.clone();
  }
  args.give(std::move(*parts));
}

FactorMap diagonal_map(const Call& call) {
  FactorMap map = same_map(call);
  const int64_t dim1 = wrap_dim(call.integer("dim1"), call.dim_of(0));
  const int64_t dim2 = wrap_dim(call.integer("dim2"), call.dim_of(0));
  map.block(map.operands[0][dim1]);
  map.block(map.operands[0][dim2]);
  TensorFactors& out = map.outputs[0];
  out.erase(out.begin() + std::max(dim1, dim2));
  out.erase(out.begin() + std::min(dim1, dim2));
  out.push_back({map.add(call.outputs.at(0).sizes.back(), false)});
  return map;
}

FactorMap unfold_map(const Call& call) {
  FactorMap map = same_map(call);
  if (call.dim_of(0) > 0) {
    const int64_t dim = wrap_dim(call.integer("dimension"), call.dim_of(0));
    cut_dim(map, dim, call.outputs.at(0).sizes[dim]);
  }
  map.outputs[0].push_back({map.add(call.integer("size"), false)});
  return map;
}

// The whole that a part (operand 0) came from; `input_sizes` becomes the local sizes. `dims` of the whole were touched.
FactorMap backward_map(const Call& call, const std::vector<int64_t>& touched, bool keeps_dims) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  const std::vector<int64_t> sizes = call.ints("input_sizes");
  map.outputs = {map.add_all(sizes)};
  TensorFactors part;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const bool is_touched = std::find(touched.begin(), touched.end(), static_cast<int64_t>(d)) != touched.end();
    if (!is_touched) {
      part.push_back(map.outputs[0][d]);
      continue;
    }
    map.block(map.outputs[0][d]);
    if (keeps_dims) {
      part.push_back({map.add(call.spec(0)->sizes[d], false)});
    }
  }
  while (static_cast<int64_t>(part.size()) < call.dim_of(0)) {
    part.push_back({map.add(call.spec(0)->sizes[part.size()], false)});
  }
  map.operands = {std::move(part)};
  map.sizes = {{.arg = call.arg_index("input_sizes"), .output = 0}};
  return map;
}

FactorMap slice_backward_map(const Call& call) {
  const std::vector<int64_t> sizes = call.ints("input_sizes");
  const Slice slice = slice_of(call, sizes);
  FactorMap map = backward_map(call, slice.is_whole ? std::vector<int64_t>{} : std::vector<int64_t>{slice.dim}, true);
  const layout::Labels& labels = call.spec(0)->labels;
  if (slice.blocks > 1 && (labels.empty() || !layout::is_labelled(labels[slice.dim]))) {
    const int block = map.operands[0][slice.dim][0];
    map.factors[block].can_shard = map.factors[block].may_interleave = true;
    map.outputs[0][slice.dim] = {map.add(slice.blocks, false), block};
  }
  return map;
}

FactorMap select_backward_map(const Call& call) {
  const auto ndim = static_cast<int64_t>(call.ints("input_sizes").size());
  return backward_map(call, {wrap_dim(call.integer("dim"), ndim)}, false);
}

FactorMap diagonal_backward_map(const Call& call) {
  const auto ndim = static_cast<int64_t>(call.ints("input_sizes").size());
  return backward_map(call, {wrap_dim(call.integer("dim1"), ndim), wrap_dim(call.integer("dim2"), ndim)}, false);
}

FactorMap unfold_backward_map(const Call& call) {
  const auto ndim = static_cast<int64_t>(call.ints("input_sizes").size());
  return backward_map(
      call, ndim == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{wrap_dim(call.integer("dim"), ndim)}, true);
}

// self with a part replaced by src: as the part's backward, joined with self.
FactorMap scatter_of(const Call& call, const std::vector<int64_t>& touched, bool keeps_dims) {
  FactorMap map = same_map(call);
  map.partial = PartialFlow::kJoint;
  TensorFactors part;
  for (int64_t d = 0; d < call.dim_of(0); ++d) {
    if (std::find(touched.begin(), touched.end(), d) == touched.end()) {
      part.push_back(map.operands[0][d]);
      continue;
    }
    map.block(map.operands[0][d]);
    if (keeps_dims) {
      part.push_back({map.add(call.spec(1)->sizes[d], false)});
    }
  }
  while (static_cast<int64_t>(part.size()) < call.dim_of(1)) {
    part.push_back({map.add(call.spec(1)->sizes[part.size()], false)});
  }
  map.operands.push_back(std::move(part));
  return map;
}

FactorMap slice_scatter_map(const Call& call) {
  const Slice slice = slice_of(call, call.spec(0)->sizes);
  return scatter_of(call, slice.is_whole ? std::vector<int64_t>{} : std::vector<int64_t>{slice.dim}, true);
}

FactorMap select_scatter_map(const Call& call) {
  return scatter_of(call, {wrap_dim(call.integer("dim"), call.dim_of(0))}, false);
}

FactorMap diagonal_scatter_map(const Call& call) {
  return scatter_of(
      call, {wrap_dim(call.integer("dim1"), call.dim_of(0)), wrap_dim(call.integer("dim2"), call.dim_of(0))}, false);
}

// Zeros around the parts are zeros around the whole; other values are not.
FactorMap pad_map(const Call& call) {
  const std::vector<int64_t> pad = call.ints("pad");
  FactorMap map = same_map(call);
  map.partial = call.arg("value").toScalar().equal(0) ? PartialFlow::kAny : PartialFlow::kMerge;
  for (size_t i = 0; i + 1 < pad.size(); i += 2) {
    const int64_t dim = call.dim_of(0) - 1 - static_cast<int64_t>(i / 2);
    if (pad[i] != 0 || pad[i + 1] != 0) {
      cut_dim(map, dim, call.outputs.at(0).sizes[dim]);
    }
  }
  return map;
}

FactorMap reversed_map(const Call& call) {
  FactorMap map = same_map(call);
  for (int64_t dim : call.dims("dims", call.dim_of(0))) {
    map.block(map.operands[0][dim]);
  }
  return map;
}

FactorMap flip_map(const Call& call) { return call.ints("dims").empty() ? same_map(call) : reversed_map(call); }

// The diagonal of a block of the matrix lies where its rows and columns begin.
void run_triangle(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const auto& ranges = call.operand_ranges[0];
  c10::IValue& diagonal = args["diagonal"];
  diagonal = diagonal.toInt() + ranges[ranges.size() - 2].begin - ranges[ranges.size() - 1].begin;
  args.run();
}

Rule view(Rule rule, View kind) {
  rule.exact = exact::kMoves;
  rule.view = kind;
  return rule;
}

}  // namespace

void add_slice_rules(RuleTable& table) {
  const Rule slice = {.map = slice_map, .local = run_slice, .takes_interleaved = true};
  table.add("aten::slice_copy.Tensor", slice);
  table.add("aten::slice.Tensor", view(slice, View::kSlice));
  table.add("aten::select_copy.int", {.map = select_map});
  table.add("aten::select.int", view({.map = select_map}, View::kSelect));
  const Rule parts = {.map = parts_map, .local = run_parts, .takes_interleaved = true};
  table.add_all({"aten::split.Tensor", "aten::split_with_sizes"}, view(parts, View::kSplit));
  table.add("aten::unbind.int", view(parts, View::kUnbind));
  table.add("aten::unsafe_split.Tensor", parts.in_exact(exact::kMoves));
  table.add("aten::unsafe_split_with_sizes", parts);
  table.add_all({"aten::split_copy.Tensor", "aten::split_with_sizes_copy", "aten::unbind_copy.int"},
                {.map = parts_map, .local = run_copied_parts, .takes_interleaved = true});
  table.add("aten::diagonal_copy", {.map = diagonal_map});
  table.add("aten::diagonal", view({.map = diagonal_map}, View::kDiagonal));
  table.add_all({"aten::unfold", "aten::unfold_copy"}, {.map = unfold_map});
  table.add("aten::slice_backward", {.map = slice_backward_map,
                                     .local = run_slice_backward,
                                     .takes_interleaved = true,
                                     .exact = exact::kMoves,
                                     .carry = Carry::kInFirst});
  table.add("aten::select_backward", {.map = select_backward_map, .exact = exact::kMoves, .carry = Carry::kInFirst});
  table.add("aten::diagonal_backward", {.map = diagonal_backward_map});
  table.add("aten::unfold_backward", {.map = unfold_backward_map, .shape = ShapeSource::kFactors});
  table.add("aten::slice_scatter", {.map = slice_scatter_map, .exact = exact::kMoves});
  table.add("aten::select_scatter", {.map = select_scatter_map, .exact = exact::kMoves});
  table.add("aten::diagonal_scatter", {.map = diagonal_scatter_map});
  table.add("aten::constant_pad_nd", {.map = pad_map, .reads_numbers = true, .exact = exact::kMoves});
  table.add("aten::flip", {.map = flip_map, .shape = ShapeSource::kFactors, .exact = exact::kMoves});
  table.add("aten::roll", {.map = reversed_map, .shape = ShapeSource::kFactors});
  table.add_all(
      {"aten::tril", "aten::triu"},
      {.map = [](const Call& call) { return same_map(call); }, .local = run_triangle, .exact = exact::kMoves});
}

}  // namespace tessera::rules
