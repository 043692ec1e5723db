#include "tessera/comm/sums/reduction.h"

#include <algorithm>

#include "tessera/base/hash.h"
#include "tessera/comm/call/call.h"
#include "tessera/comm/sums/merge_sums.h"
#include "tessera/comm/sums/tensor_views.h"
#include "tessera/comm/sums/transfer.h"

namespace tessera::comm {

namespace {

using Tensors = std::vector<at::Tensor>;
using sums::Node;
using layout::Range;

// results[0] = the combination of `values`, the first first; by the code that rank threads run.
void combine_into(const Tensors& values, const Tensors& results, ReduceOp op) {
  std::vector<Call> calls(values.size(), Call{.kind = Kind::kReduceScatter, .reduce = op});
  std::vector<const Call*> pointers;
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].inputs = values[i];
    pointers.push_back(&calls[i]);
  }
  calls[0].outputs = results;
  transfer(pointers, 0);
}

auto combiner(ReduceOp op) {
  return [op](const Tensors& values, const Tensors& results) { combine_into(values, results, op); };
}

uint64_t shape_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  return base::hash_range(sizes, static_cast<uint64_t>(dtype));
}

// Every member combines all elements, or one cut of them for all.
void replicate(Reduction& reduction, const Tensors& given, const Tensors& taken, int64_t numel, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const Range part = reduction.is_whole ? Range{0, numel} : layout::cut(numel, size, i);
    reduction.lengths.push_back(part.size());
    reduction.given.push_back(narrow(given, part));
    reduction.taken.push_back(narrow(taken, part));
  }
}

void scatter(Reduction& reduction, const Merge& merge, const std::vector<at::Tensor>& results, int64_t member) {
  for (const Range& part : merge.scatter->parts) {
    Tensors given;
    for (const at::Tensor& sum : merge.sums) {
      given.push_back(sum.detach().narrow(merge.scatter->dim, part.begin, part.size()).contiguous());
    }
    reduction.given.push_back(flat(given));
    reduction.lengths.push_back(c10::multiply_integers(merge.sizes_at(static_cast<int64_t>(reduction.lengths.size()))));
    reduction.taken.emplace_back();
  }
  reduction.taken[member] = flat(results);
}

uint64_t shape_of(const Merge& merge) {
  uint64_t hash = shape_of(merge.sizes, c10::typeMetaToScalarType(merge.options.dtype()));
  const auto add = [&](int64_t begin, int64_t end) { hash = base::hash_combine(base::hash_combine(hash, begin), end); };
  add(merge.plan.root().begin, merge.plan.root().end);
  for (const std::vector<Node>& held : merge.plan.nodes()) {
    hash = base::hash_combine(hash, held.size());
    for (const Node& node : held) {
      add(node.begin, node.end);
    }
  }
  if (!merge.scatter) {
    return hash;
  }
  hash = base::hash_combine(hash, merge.scatter->dim);
  for (const Range& part : merge.scatter->parts) {
    add(part.begin, part.end);
  }
  return hash;
}

}  // namespace

bool Reduction::is_handed_out() const {
  return !is_whole && std::none_of(taken.begin(), taken.end(), [](const Tensors& part) { return part.empty(); });
}

int64_t Reduction::pieces(int64_t piece) const {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return std::max<int64_t>(1, (longest + piece - 1) / piece);
}

Range Reduction::piece_of(int64_t part, int64_t k, int64_t piece) const {
  const int64_t length = lengths[part];
  return {std::min(k * piece, length), std::min((k + 1) * piece, length)};
}

Reduction reduction_of(const at::Tensor& tensor, ReduceOp op, int64_t size) {
  Reduction reduction{.dtype = tensor.scalar_type(),
                      .counts = std::vector<int64_t>(size, 1),
                      .is_whole = static_cast<int64_t>(tensor.nbytes()) <= kSmallBytes,
                      .combine = combiner(op)};
  reduction.shapes.assign(size, shape_of(tensor.sizes(), tensor.scalar_type()));
  replicate(reduction, flat(tensor), flat(tensor), tensor.numel(), size);
  return reduction;
}

Reduction scatter_reduction_of(const at::Tensor& output, const std::vector<at::Tensor>& inputs, ReduceOp op,
                               int64_t member) {
  Reduction reduction{
      .dtype = output.scalar_type(), .counts = std::vector<int64_t>(inputs.size(), 1), .combine = combiner(op)};
  for (const at::Tensor& input : inputs) {
    reduction.lengths.push_back(input.numel());
    reduction.given.push_back(flat(input));
    reduction.taken.emplace_back();
    reduction.shapes.push_back(shape_of(input.sizes(), input.scalar_type()));
  }
  reduction.taken[member] = flat(output);
  return reduction;
}

Reduction merge_reduction_of(const Merge& merge, const std::vector<at::Tensor>& results, int64_t member) {
  const int64_t size = static_cast<int64_t>(merge.plan.nodes().size()), numel = c10::multiply_integers(merge.sizes);
  Reduction reduction{.dtype = c10::typeMetaToScalarType(merge.options.dtype()),
                      .shapes = std::vector<uint64_t>(size, shape_of(merge))};
  for (const std::vector<Node>& held : merge.plan.nodes()) {
    reduction.counts.push_back(static_cast<int64_t>(held.size()));
  }
  reduction.combine = [&plan = merge.plan](const Tensors& values, const Tensors& sums) {
    merge_piece(plan, values, sums);
  };
  reduction.is_whole = !merge.scatter && numel * static_cast<int64_t>(merge.options.dtype().itemsize()) <= kSmallBytes;
  merge.scatter ? scatter(reduction, merge, results, member)
                : replicate(reduction, flat(merge.sums), flat(results), numel, size);
  return reduction;
}

}  // namespace tessera::comm
