// What makes a tensor a DTensor: the record behind it, and the two ways to get at it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include "tessera/base/pooled.h"
#include "tessera/dtensor/record/gather_policy.h"
#include "tessera/dtensor/record/tensor_like.h"
#include "tessera/layout/origin.h"
#include "tessera/layout/spec.h"

namespace tessera::dtensor {

using layout::Origin;
using layout::Spec;

// A DTensor is an ordinary TensorImpl whose key set says so (Note [Keys]) and whose BackendMeta is a Meta. It has no
// storage; its sizes and strides are those of the one-device program.
//
// Note [Keys]. PrivateUse3 below autograd, so that derivative formulas, views, version counters, hooks and optimizers
// work unchanged; PrivateUse1 stays free for vendors. The CPU's autocast key, as the local tensors are CPU tensors (a
// CUDA local brings its own).
constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

class GatherGroup;

// What the plan says about a parameter; owned by the rank, outlives its tensors' use.
struct ParameterInfo {
  std::string name;
  uint64_t site = 0;                                // hash of the name: equal on every rank
  std::optional<layout::Placements> input, output;  // wanted of the operator that reads it
  const GatherPolicy* gather = nullptr;             // null: it is read as it is stored
  GatherGroup* group = nullptr;                     // with which it is gathered; null: alone
  size_t member = 0;                                // ... and which of its members it is
  const void* told_by = nullptr;  // what a call's plan depends on besides the layouts: this, or the policy; see `add`
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

// What a tensor's memory held at some time: the same later if nobody wrote to it since.
struct Moment {
  uint32_t writes = 0;   // by operators, through any view of the memory
  uint32_t epoch = 0;    // how often the part was replaced
  uint32_t version = 0;  // by the program, through the plain tensor that to_local gave it
  bool operator==(const Moment&) const = default;
};

// How often libtorch counted a write to the tensor; 0 for one of inference mode, which counts none.
inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

struct OpInfo;

// How a view is made from its base again, of a view that does not share its base's memory for good: its elements had to
// be moved, or the base is a Partial that will be merged. See views.h.
struct Derived {
  MetaPtr base;
  const OpInfo* op = nullptr;
  std::vector<c10::IValue> args;  // without the first, which is the base
  int64_t output = 0;             // which of a list of views
  bool shares_memory = false;     // with the base, as long as its epoch is that of `made`
  Moment made;                    // the base, when the view was made or written back last
};

struct Pending;

// This rank's part of a tensor in another layout, that later readers share: valid while nobody writes to the tensor.
struct GatheredCopy {
  Spec spec;
  at::Tensor part;
  Moment made;
};

// The parts that few DTensors have.
struct Rare {
  GatheredCopy gathered;           // as operators read it
  GatheredCopy kept;               // of a parameter, between them (GatherPolicy)
  std::vector<GatheredCopy> sent;  // to other coordinates of an axis on which it is On, in the order of the sends
  std::unique_ptr<Derived> derived;
  std::shared_ptr<Pending> pending;  // the value waits for other samples; see pending.h
  bool is_unfinished = false;        // computed from a gradient that lacked samples of the step
  // Set while the tensor is deferred: it has neither layout nor memory.
  std::shared_ptr<Recorder> recorder;
  int64_t recorded = -1;
};

// Shared by a tensor, its detached aliases and its saved copies in the graph.
struct Meta final : c10::BackendMeta, base::Pooled<Meta> {
  at::Tensor local;
  Spec spec;
  const Origin* origin = nullptr;
  const ParameterInfo* parameter = nullptr;
  MetaPtr root;            // of a view: the tensor whose memory it shows
  uint32_t epoch = 0;      // how often `local` was replaced
  uint32_t writes = 0;     // to this memory, counted at the root
  bool has_views = false;  // of this memory, marked at the root: one was made
  std::unique_ptr<Rare> rare;

  Meta& memory() { return root ? *root : *this; }
  const Meta& memory() const { return root ? *root : *this; }
  Moment moment() const;
  // Whether the memory still holds what it held then. Never for tensors of inference mode, which count no versions.
  bool unchanged_since(const Moment& then) const;
  Derived* derived() const { return rare ? rare->derived.get() : nullptr; }
  bool is_pending() const { return rare && rare->pending; }

  // The copy in this layout, if there is a valid one that the running mode may read; else an undefined tensor.
  at::Tensor find_copy(GatheredCopy Rare::* slot, const Spec& spec) const;
  void keep_copy(GatheredCopy Rare::* slot, const Spec& spec, at::Tensor part);
  // The same of copies at other coordinates: the last one that is valid, or null.
  const GatheredCopy* find_sent(const Spec& spec) const;
  // The copy from which it gets there the shortest way, by messages alone, on the way from its own place. Null: it goes
  // from that.
  const GatheredCopy* nearest_sent(const Spec& to) const;
  void keep_sent(const Spec& spec, at::Tensor part);

  Rare& make_rare();
  bool may_read(const GatheredCopy& copy) const;
  // What is known of a dropped tensor by weak references keeps no memory.
  void release_resources() override;
  // The same logical value, elsewhere placed.
  void replace(at::Tensor new_local, Spec new_spec);
};

C10_ALWAYS_INLINE bool is_dtensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kKey);
}

// Precondition: is_dtensor(tensor).
inline Meta* meta_of(const at::Tensor& tensor) {
  return static_cast<Meta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// A DTensor of this record. The local tensor must be plain. A prototype is of this layout; it is made with the second
// DTensor, and again on another device. With one, the DTensor is a tensor of inference mode if its part is; without
// one, if that mode is on.
at::Tensor wrap(MetaPtr meta);
at::Tensor wrap(MetaPtr meta, Prototype& prototype);
at::Tensor wrap(at::Tensor local, Spec spec, const Origin* origin = nullptr);

// A DTensor of this record that is a view: it counts writes with its base. As on one device it is a tensor of inference
// mode if its base is one, whatever the mode is now.
at::Tensor wrap_view(MetaPtr meta, const c10::VariableVersion& writes_of_base);
at::Tensor wrap_view(MetaPtr meta, const c10::VariableVersion& writes_of_base, Prototype& prototype);

// A tensor without layout or memory, with the sizes, strides and dtype of a meta tensor.
at::Tensor wrap_deferred(const at::Tensor& like, std::shared_ptr<Recorder> recorder, int64_t recorded);

// Turns `tensor` (plain, deferred or DTensor) into the DTensor `value` in place: the object stays, with its aliases,
// autograd identity and hooks.
void become(const at::Tensor& tensor, const at::Tensor& value);

}  // namespace tessera::dtensor
