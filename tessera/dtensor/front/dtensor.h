// Distributed tensors, for users: make them, move them, read them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/layout/spec.h"

namespace tessera::dtensor {

// A DTensor whose value is `tensor`, which every rank of the mesh passes alike; each keeps its part. No communication.
// Differentiable only as a leaf: the result has no history.
at::Tensor distribute(const at::Tensor& tensor, const layout::Mesh& mesh, const layout::Placements& placements,
                      const layout::Labels& labels = {});
at::Tensor distribute(const at::Tensor& tensor, const layout::Mesh& mesh, std::string_view placements);

// A DTensor made of the ranks' parts. `sizes` are the global ones; left out, they are the parts' sizes times the ranks
// that cut each dim, and every part must then have the same size (or the next collective throws DivergenceError).
// Throws if this rank's part has another size than the layout gives it. No communication.
at::Tensor from_local(const at::Tensor& local, const layout::Mesh& mesh, const layout::Placements& placements,
                      std::optional<std::vector<int64_t>> sizes = std::nullopt);

// This rank's part: a plain tensor that shares the DTensor's memory (of a Partial: its term). Differentiable: the
// gradient of the part becomes a DTensor of the same layout (a Partial's: Replicate).
at::Tensor to_local(const at::Tensor& tensor);

// The whole value as a plain tensor, the same on every rank. Differentiable; the ranks must compute with it alike.
// Collective over the mesh.
at::Tensor full_tensor(const at::Tensor& tensor);

// The same value, otherwise placed; on another mesh over the same ranks if `mesh` is given. Differentiable, without
// changing the order in which gradients add. Collective over the mesh.
at::Tensor redistribute(const at::Tensor& tensor, const layout::Placements& placements);
at::Tensor redistribute(const at::Tensor& tensor, std::string_view placements);
at::Tensor redistribute(const at::Tensor& tensor, const layout::Mesh& mesh, const layout::Placements& placements);

// Layout and shape; throws for a plain tensor.
const Spec& spec_of(const at::Tensor& tensor);

// `DTensor float32[8, 16] {dp: S(0), tp: R} on dp=2,tp=2` and this rank's part. No communication.
std::string to_string(const at::Tensor& tensor);

// An independent copy: value, layout, requires_grad; of a leaf, its gradient too.
at::Tensor deep_copy(const at::Tensor& tensor);

// The same tensor with labels on its dims (what they mean: samples, positions). No history is added.
at::Tensor with_labels(const at::Tensor& tensor, const layout::Labels& labels, const Origin* origin = nullptr);

// Seeds the generator of this rank, `counter` until set_generator chooses `stock`; every rank of a job must give the
// same seed, or the next collective throws DivergenceError. The step starts at zero. (torch::manual_seed seeds
// libtorch's generator, which ranks do not draw from.)
void manual_seed(uint64_t seed);

// Where random numbers come from: `counter` gives values by place in the program, the same in every layout, schedule
// and number of micro-batches; `stock` gives those that plain libtorch draws on one CPU in the same order, from the
// same seed, at the price of walking the whole stream on every rank. See docs/guide/random.md.
enum class GeneratorKind : uint8_t { kCounter, kStock };

// Chooses the generator of this rank, seeded with the last seed given; every rank of a job must choose the same.
// Operators that are told a generator draw from that one, as plain libtorch does: each rank must have its own copy.
void set_generator(GeneratorKind kind);

// The handle of this rank's `stock` generator, for get_state, set_state and clone, as of libtorch's default generator.
// Throws under `counter`.
at::Generator stock_generator();

// What happens, while it lives, when an operator needs a redistribution that the program did not write.
class ModeScope {
 public:
  explicit ModeScope(Mode mode);
  ~ModeScope();
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  Mode previous_;
};

// How sums are made (`exact` gives every layout the same bits; see docs/guide/same-bits.md) from now on, on this rank.
// Every rank of a job must say the same; a job's steps must not mix both. In `exact`, libtorch computes with plain
// tensors on one thread (Note [Threads]). On the rank's thread.
enum class Numerics : uint8_t { kFast, kExact };
void set_numerics(Numerics numerics, const sums::Lattice& lattice = {});

// How many targets count in the mean loss of the following steps, on this rank, in `exact` numerics: where some are
// ignored and a step has several micro-batches, their number must be known before the first. 0: as many as there are.
// Throws if negative.
void set_step_tokens(int64_t tokens);

// Compares plain tensors that meet DTensors across ranks (slow; for finding programs that are not one program).
void set_check_plain(bool on);

// What a recomputed body keeps besides its inputs, and where it runs.
struct RecomputeOptions {
  // Operators whose results the second run takes instead of computing them again, by their names: `aten::mm`, `mm`, or
  // what programs call them (rules/families/operators_named.h).
  std::vector<std::string> keep = {};
  // Those of the module whose forward it is. Where they are all on one stage, inputs that want a gradient and lie on
  // another are brought there first, so that the second run sends nothing.
  std::vector<at::Tensor> parameters = {};
};

// Throws PlanError, with the nearest name, if one of these means no operator whose results can be kept.
void verify_operators_to_keep(const std::vector<std::string>& names);

// Runs `body` now, keeping nothing for backward but the inputs, and again when its gradient is needed: the same random
// numbers, the same results, and in either numerics the bits that gradients have without it, of inputs and of the
// parameters that the body reads. Other tensors that want a gradient must be among the inputs: throws if it reads one.
// Results that need no gradient are as the body gives them, inputs that it hands on are the caller's. Whatever else the
// body changes, it changes twice. What `keep` names is kept and computed once; throws PlanError if no operator is
// called so, and if what is kept is written to where the body's operators do not show it.
std::vector<at::Tensor> recompute(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& body,
                                  const std::vector<at::Tensor>& inputs, const RecomputeOptions& options = {});
at::Tensor recompute(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& body,
                     const std::vector<at::Tensor>& inputs, const RecomputeOptions& options = {});

}  // namespace tessera::dtensor
