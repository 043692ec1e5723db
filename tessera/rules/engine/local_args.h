// The arguments of a local kernel or a decomposition, by name.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/rule.h"

namespace tessera::rules {

// `place = value` by a swap: g++ 12 warns of libtorch's assignment where much is inlined.
inline void replace(c10::IValue& place, c10::IValue value) { place.swap(value); }

// A view of the top of a stack that holds the arguments of `op`; both must outlive it.
class StackArgs {
 public:
  StackArgs(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  // The argument, which may be assigned to. Throws an internal error if the schema has none of this name.
  c10::IValue& operator[](const char* name);
  bool has(const char* name) const;
  // The tensor; undefined for None.
  at::Tensor tensor(const char* name);

  // Copies tensors whose memory has gaps, as that of a part of a tensor has: for kernels of libtorch that read on as if
  // it had none.
  void close_gaps();
  // Calls the operator with the arguments as they are now; its results replace them.
  void run();
  // The tensor that the operator writes (self in place, out=); undefined if it writes none.
  at::Tensor written() const;
  // Drops the arguments and leaves the one result, written into written() if that is defined.
  void give_value(at::Tensor result);
  // Drops the arguments and leaves these results.
  template <typename... Results>
  void give(Results... results) {
    drop();
    (stack_.emplace_back(std::move(results)), ...);
  }

 private:
  int find(const char* name) const;
  void drop();

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t begin_;
};

}  // namespace tessera::rules
