#include "tessera/comm/sums/transfer.h"

#include <cstring>
#include <type_traits>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "tessera/base/error.h"
#include "tessera/comm/sums/merge_sums.h"
#include "tessera/comm/sums/ordered_combine.h"
#include "tessera/comm/sums/tensor_views.h"

namespace tessera::comm {

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  const auto bytes = from.nbytes();
  if (bytes == 0 || to.const_data_ptr() == from.const_data_ptr()) {
    return;
  }
  if (to.is_cpu()) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), bytes);
  } else {
    bytes_of(to).copy_(bytes_of(from));
  }
}

namespace {

constexpr int64_t kReduceBlock = 512;

template <typename T>
constexpr bool kIsComplex = c10::is_complex<T>::value;

template <typename T>
T larger(T a, T b) {
  return a != a ? a : b > a || b != b ? b : a;
}

template <typename T>
T smaller(T a, T b) {
  return a != a ? a : b < a || b != b ? b : a;
}

// acc[i] = merge(acc[i], values[i]). Always inlined: with a constant `count` it becomes vector code.
template <typename Acc, typename T, typename Merge>
C10_ALWAYS_INLINE void merge_each(Acc* acc, const T* values, int64_t count, Merge merge) {
  for (int64_t i = 0; i < count; ++i) {
    acc[i] = merge(acc[i], static_cast<Acc>(values[i]));
  }
}

template <typename Acc, typename T>
C10_ALWAYS_INLINE void merge_block(Acc* acc, const T* values, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return merge_each(acc, values, count, [](Acc a, Acc b) { return static_cast<Acc>(a + b); });
    case ReduceOp::kProd: return merge_each(acc, values, count, [](Acc a, Acc b) { return static_cast<Acc>(a * b); });
    case ReduceOp::kMax:
    case ReduceOp::kMin:
      if constexpr (!kIsComplex<Acc>) {
        return op == ReduceOp::kMax ? merge_each(acc, values, count, larger<Acc>)
                                    : merge_each(acc, values, count, smaller<Acc>);
      }
  }
}

// outputs[k][at + i] = the combination of inputs[0][at + i], inputs[1][at + i], ... for i below `count`, at most
// kReduceBlock. Each is read before it is written.
template <typename T>
C10_ALWAYS_INLINE void reduce_block(const std::vector<const T*>& inputs, const std::vector<T*>& outputs, int64_t at,
                                    int64_t count, ReduceOp op) {
  using Acc = at::opmath_type<T>;
  Acc acc[kReduceBlock];
  for (int64_t i = 0; i < count; ++i) {
    acc[i] = static_cast<Acc>(inputs[0][at + i]);
  }
  for (size_t j = 1; j < inputs.size(); ++j) {
    merge_block(acc, inputs[j] + at, count, op);
  }
  if (op == ReduceOp::kAvg) {
    for (int64_t i = 0; i < count; ++i) {
      acc[i] = static_cast<Acc>(acc[i] / static_cast<Acc>(inputs.size()));
    }
  }
  for (auto* output : outputs) {
    for (int64_t i = 0; i < count; ++i) {
      output[at + i] = static_cast<T>(acc[i]);
    }
  }
}

template <typename T>
void reduce(const std::vector<const T*>& inputs, const std::vector<T*>& outputs, int64_t begin, int64_t end,
            ReduceOp op) {
  auto at = begin;
  for (; at + kReduceBlock <= end; at += kReduceBlock) {
    reduce_block(inputs, outputs, at, kReduceBlock, op);
  }
  reduce_block(inputs, outputs, at, end - at, op);
}

// The same by operators of the device.
void reduce_on_device(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                      const layout::Range& range, ReduceOp op) {
  const auto to = narrow(flat(outputs), range);
  combine_in_order(to[0], narrow(flat(inputs), range), op);
  for (size_t i = 1; i < to.size(); ++i) {
    to[i].copy_(to[0]);
  }
}

void reduce(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, int64_t begin, int64_t end,
            ReduceOp op) {
  if (begin >= end) {
    return;
  }
  if (!inputs[0].is_cpu()) {
    return reduce_on_device(inputs, outputs, {begin, end}, op);
  }
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kHalf, at::kBFloat16, at::kBool, inputs[0].scalar_type(), "reduce", [&] {
    std::vector<const scalar_t*> from;
    for (const auto& input : inputs) {
      from.push_back(input.const_data_ptr<scalar_t>());
    }
    std::vector<scalar_t*> to;
    for (const auto& output : outputs) {
      to.push_back(output.mutable_data_ptr<scalar_t>());
    }
    reduce<scalar_t>(from, to, begin, end, op);
  });
}

// To one member, or in place on all, each of which does a part of it.
template <typename GivenBy>
void reduce_given(const std::vector<const Call*>& calls, size_t part, GivenBy given_by) {
  const auto& own = *calls[part];
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < calls.size(); ++i) {
    tensors.push_back(given_by(i));
  }
  if (facts_of(own.kind).gives_to_each) {
    return reduce(tensors, {own.outputs[0]}, 0, own.outputs[0].numel(), own.reduce);
  }
  if (calls.size() > 1) {
    const auto count = tensors[0].numel(), parts = static_cast<int64_t>(calls.size()), i = static_cast<int64_t>(part);
    reduce(tensors, tensors, count * i / parts, count * (i + 1) / parts, own.reduce);
  }
}

}  // namespace

void transfer(const std::vector<const Call*>& calls, size_t part) {
  const auto& own = *calls[part];
  const auto& facts = facts_of(own.kind);
  if (own.kind == Kind::kMerge) {
    return merge_sums(calls, part);
  }
  const auto given_by = [&](size_t i) { return calls[i]->inputs[facts.gives_to_each ? part : 0]; };
  if (facts.reduces) {
    return reduce_given(calls, part, given_by);
  }
  if (facts.has_root) {
    return copy_bytes(own.outputs[0], given_by(static_cast<size_t>(own.peer)));
  }
  for (size_t i = 0; i < calls.size() && facts.takes_from_each; ++i) {
    copy_bytes(own.outputs[i], given_by(i));
  }
}

}  // namespace tessera::comm
