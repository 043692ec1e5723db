#include "tessera/comm/sums/merge_sums.h"

#include <cstring>
#include <type_traits>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>

namespace tessera::comm {

namespace {

using sums::Node;

constexpr int64_t kBlock = 512;  // elements

// A register's worth of elements, wherever they lie.
template <typename T>
struct Vector {
  typedef T Type __attribute__((vector_size(16), aligned(alignof(T)), may_alias));
  static constexpr int64_t kLanes = 16 / sizeof(T);
  static Type load(const T* from) { return *reinterpret_cast<const Type*>(from); }
  static void store(T* to, Type value) { *reinterpret_cast<Type*>(to) = value; }
};

// Half-precision types: added in float and rounded, one by one.
template <typename T>
struct Single {
  struct Type {
    T value;
    Type operator+(Type other) const {
      using Wide = at::opmath_type<T>;
      return {static_cast<T>(static_cast<Wide>(value) + static_cast<Wide>(other.value))};
    }
  };
  static constexpr int64_t kLanes = 1;
  static Type load(const T* from) { return {*from}; }
  static void store(T* to, Type value) { *to = value.value; }
};

template <int kCount, typename Pack, typename T>
C10_ALWAYS_INLINE auto tree(const T* const* operands, int64_t at) {
  if constexpr (kCount == 1) {
    return Pack::load(operands[0] + at);
  } else {
    return tree<kCount / 2, Pack>(operands, at) + tree<kCount / 2, Pack>(operands + kCount / 2, at);
  }
}

// to[i] = the balanced tree over operands[.][i]. `to` may be one of the operands.
template <int kCount, typename T>
void add(T* to, const T* const* operands, int64_t count) {
  using Pack = std::conditional_t<std::is_same_v<T, at::opmath_type<T>>, Vector<T>, Single<T>>;
  const T* from[kCount];
  std::copy_n(operands, kCount, from);
  int64_t i = 0;
  for (; i + Pack::kLanes <= count; i += Pack::kLanes) {
    Pack::store(to + i, tree<kCount, Pack>(from, i));
  }
  for (; i < count; ++i) {
    Single<T>::store(to + i, tree<kCount, Single<T>>(from, i));
  }
}

template <typename T>
void add(T* to, const T* const* operands, int64_t operand_count, int64_t count) {
  switch (operand_count) {
    case 1: return add<1>(to, operands, count);
    case 2: return add<2>(to, operands, count);
    case 4: return add<4>(to, operands, count);
    default: return add<8>(to, operands, count);
  }
}

// Runs the steps of a plan on runs of elements.
template <typename T>
class Adder {
 public:
  // `results[k]` are the tensors that become closed node k.
  Adder(const sums::MergePlan& plan, const std::vector<const T*>& sums, const std::vector<std::vector<T*>>& results)
      : plan_(plan), sums_(sums), results_(results), slots_(plan.slots() * kBlock) {}

  // Elements [from, from + count) of the sums become those from `to` on of the results.
  void run(int64_t from, int64_t to, int64_t count) {
    for (int64_t done = 0; done < count; done += kBlock) {
      run_block(from + done, to + done, std::min(kBlock, count - done));
    }
  }

 private:
  void run_block(int64_t from, int64_t to, int64_t count) {
    for (const sums::MergePlan::Step& step : plan_.steps()) {
      const T* operands[8];
      for (int32_t i = 0; i < step.count; ++i) {
        const int32_t operand = step.operands[i];
        operands[i] = operand >= 0 ? sums_[operand] + from : slot(~operand);
      }
      if (step.target < 0) {
        add(slot(~step.target), operands, step.count, count);
        continue;
      }
      const std::vector<T*>& results = results_[step.target];
      T* first = results[0] + to;
      add(first, operands, step.count, count);
      for (size_t i = 1; i < results.size(); ++i) {
        std::memcpy(results[i] + to, first, count * sizeof(T));
      }
    }
  }

  T* slot(int32_t index) { return slots_.data() + index * kBlock; }

  const sums::MergePlan& plan_;
  const std::vector<const T*>& sums_;
  const std::vector<std::vector<T*>>& results_;
  std::vector<T> slots_;
};

template <typename T>
std::vector<const T*> sums_of(const std::vector<const Call*>& calls) {
  std::vector<const T*> sums;
  for (const Call* call : calls) {
    for (const at::Tensor& sum : call->inputs) {
      sums.push_back(sum.const_data_ptr<T>());
    }
  }
  return sums;
}

// By closed node, those of `calls`.
template <typename T>
std::vector<std::vector<T*>> results_of(at::ArrayRef<const Call*> calls) {
  std::vector<std::vector<T*>> results(calls[0]->outputs.size());
  for (const Call* call : calls) {
    for (size_t k = 0; k < results.size(); ++k) {
      results[k].push_back(call->outputs[k].mutable_data_ptr<T>());
    }
  }
  return results;
}

template <typename T>
void replicate_sums(const std::vector<const Call*>& calls, int64_t part) {
  const Merge& merge = *calls[part]->merge;
  const auto sums = sums_of<T>(calls);
  const auto results = results_of<T>(calls);
  const int64_t count = c10::multiply_integers(merge.sizes), parts = static_cast<int64_t>(calls.size());
  const int64_t begin = count * part / parts;
  Adder<T>(merge.plan, sums, results).run(begin, begin, count * (part + 1) / parts - begin);
}

template <typename T>
void scatter_sums(const std::vector<const Call*>& calls, int64_t part) {
  const Merge& merge = *calls[part]->merge;
  const auto sums = sums_of<T>(calls);
  const auto results = results_of<T>({calls[part]});
  Adder<T> adder(merge.plan, sums, results);
  const at::IntArrayRef sizes = merge.sizes;
  const auto& [dim, cuts] = *merge.scatter;
  const int64_t outer = c10::multiply_integers(sizes.slice(0, dim)),
                inner = c10::multiply_integers(sizes.slice(dim + 1));
  const int64_t length = cuts[part].size() * inner;
  for (int64_t i = 0; i < outer; ++i) {
    adder.run((i * sizes[dim] + cuts[part].begin) * inner, i * length, length);
  }
}

}  // namespace

std::vector<at::Tensor> merge_results(const Merge& merge, int64_t member) {
  const std::vector<Node>& own = merge.plan.nodes()[member];
  const bool may_reuse = merge.memory == Merge::Memory::kReuse && !merge.scatter;
  std::vector<at::Tensor> results;
  for (const Node& closed : merge.plan.closed()) {
    const auto inside = std::find_if(
        own.begin(), own.end(), [&](const Node& node) { return closed.begin <= node.begin && node.end <= closed.end; });
    const bool reuses = may_reuse && inside != own.end();
    results.push_back(reuses ? merge.sums[inside - own.begin()] : at::empty(merge.sizes_at(member), merge.options));
  }
  return results;
}

std::vector<NodeSum> with_nodes(const sums::MergePlan& plan, const std::vector<at::Tensor>& sums) {
  std::vector<NodeSum> result;
  for (size_t k = 0; k < sums.size(); ++k) {
    result.push_back({plan.closed()[k], sums[k]});
  }
  return result;
}

void merge_piece(const sums::MergePlan& plan, const std::vector<at::Tensor>& sums,
                 const std::vector<at::Tensor>& results) {
  if (results.empty()) {
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, results[0].scalar_type(), "merge", [&] {
    std::vector<const scalar_t*> from;
    for (const at::Tensor& sum : sums) {
      from.push_back(sum.const_data_ptr<scalar_t>());
    }
    std::vector<std::vector<scalar_t*>> to;
    for (const at::Tensor& result : results) {
      to.push_back({result.mutable_data_ptr<scalar_t>()});
    }
    Adder<scalar_t>(plan, from, to).run(0, 0, results[0].numel());
  });
}

void merge_sums(const std::vector<const Call*>& calls, size_t part) {
  const Merge& merge = *calls[part]->merge;
  if (merge.plan.closed().empty()) {
    return;
  }
  const at::ScalarType dtype = c10::typeMetaToScalarType(merge.options.dtype());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "merge", [&] {
    merge.scatter ? scatter_sums<scalar_t>(calls, static_cast<int64_t>(part))
                  : replicate_sums<scalar_t>(calls, static_cast<int64_t>(part));
  });
}

}  // namespace tessera::comm
