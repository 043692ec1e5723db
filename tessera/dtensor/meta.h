// What makes a tensor a DTensor: the record behind it, and the two ways to get at it.
#pragma once

#include <cstdint>
#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "tessera/layout/spec.h"

namespace tessera::dtensor {

using layout::Spec;

// A DTensor is an ordinary TensorImpl whose key set says so (Note [Keys]) and whose BackendMeta is a Meta. It has no storage;
// its sizes and strides are those of the one-device program.
//
// Note [Keys]. PrivateUse3 below autograd, so that derivative formulas, views, version counters, hooks and optimizers work
// unchanged; PrivateUse1 stays free for vendors. The CPU's autocast key, as the local tensors are CPU tensors (a CUDA local
// brings its own).
constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

// Which samples of the step the rows of a micro-batch are. Interned and immortal; beside the Spec, not in it, so that equal
// micro-batches share plans. Rows from `row` on, up to the next piece, are samples from `sample` on: each data-parallel rank
// owns one contiguous block of the step's samples, so a micro-batch is made of one run from every block.
struct Origin {
  struct Piece {
    int64_t row = 0;
    int64_t sample = 0;
    auto operator<=>(const Piece&) const = default;
  };
  std::vector<Piece> pieces;  // ascending by row, the first at row 0
  static const Origin* make(std::vector<Piece> pieces);
};

// What the plan says about a parameter; owned by the rank, outlives its tensors' use.
struct ParameterInfo {
  std::string name;
  uint64_t site = 0;                                  // hash of the name: equal on every rank
  std::optional<layout::Placements> input, output;    // wanted of the operator that reads it
};

struct Meta;
using MetaPtr = c10::intrusive_ptr<Meta>;

// Work that a tensor without a layout waits for: the recording of a deferred constructor.
class Recorder {
 public:
  virtual ~Recorder() = default;
  // The call's arguments are on the stack; leaves the results there.
  virtual void call(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack) = 0;
};

// The parts that few DTensors have.
struct Rare {
  // A gathered copy that later readers share, valid while the tensor's version is `gathered_version`.
  Spec gathered_spec;
  at::Tensor gathered;
  uint32_t gathered_version = 0;
  // The DTensor that this is a view of, and its epoch when the view was made; kDetached if the view had to communicate.
  MetaPtr base;
  uint32_t base_epoch = 0;
  bool detached_view = false;
  // Set while the tensor is deferred: it has neither layout nor memory.
  std::shared_ptr<Recorder> recorder;
  int64_t recorded = -1;
};

// Shared by a tensor, its detached aliases and its saved copies in the graph.
struct Meta final : c10::BackendMeta {
  at::Tensor local;
  Spec spec;
  const Origin* origin = nullptr;
  const ParameterInfo* parameter = nullptr;
  uint32_t epoch = 0;  // how often `local` was replaced
  std::unique_ptr<Rare> rare;

  Rare& make_rare();
  // The same logical value, elsewhere placed.
  void replace(at::Tensor new_local, Spec new_spec);
};

inline bool is_dtensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kKey);
}

// Precondition: is_dtensor(tensor).
inline Meta* meta_of(const at::Tensor& tensor) {
  return static_cast<Meta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// A DTensor of this record. The local tensor must be plain.
at::Tensor wrap(MetaPtr meta);
at::Tensor wrap(at::Tensor local, Spec spec, const Origin* origin = nullptr);

// A tensor without layout or memory, with the sizes, strides and dtype of a meta tensor.
at::Tensor wrap_deferred(const at::Tensor& like, std::shared_ptr<Recorder> recorder, int64_t recorded);

// Turns `tensor` (plain, deferred or DTensor) into the DTensor `value` in place: the object stays, with its aliases,
// autograd identity and hooks.
void become(const at::Tensor& tensor, const at::Tensor& value);

}  // namespace tessera::dtensor
