// Gradients that wait for the step's other samples.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/dtensor/exact/late_call.h"
#include "tessera/dtensor/exact/sample_sum.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

struct RankState;

// Note [Pending]. In `exact` a sum over samples has one order: the samples of a batch leaf one after the other, then
// the tree over the leaves of the step. One micro-batch on one rank has a part of that sum only, so the result waits:
// its DTensor is a handle, with the sizes and the layout that the program expects, NaN instead of values, and a Pending
// beside it. Adding two handles joins them; operators that only rearrange are noted and run later, on the merged sum;
// anything else settles the handle first: the ranks' sums are merged and become its value. Settling keeps the record
// while samples are missing, so that a gradient that was read may still be joined; a write drops it.
//
// Sums of 16-bit gradients are made in float32. Operators that cast or move them take them so, casts to 16 bits are put
// off: the value is rounded where an operator computes with it, or at the end. So a float32 parameter that the program
// casts gets a gradient that was never rounded to 16 bits.

// What a handle stands for: a sum of groups, each a chain of operators to run on a sum of uses.
struct Pending {
  struct Link {
    const OpInfo* op = nullptr;
    std::vector<c10::IValue> args;  // contiguous copies where they are tensors
    size_t hole = 0;                // the argument that the gradient is
  };
  struct Group {
    std::vector<Link> chain;
    layout::Spec spec;                   // before the chain
    std::map<uint64_t, SampleSum> uses;  // those that another walk notes have no samples
    at::Tensor
        constant;  // instead of uses: a value that waits for nothing (zeros, what the program wrote), this rank's part
    std::shared_ptr<LateCall> late;                           // ... or one that was put off
    std::map<uint64_t, std::shared_ptr<LateCall>> late_uses;  // beside the uses: those whose calls were put off

    bool has_samples() const;
  };
  std::vector<Group> groups;
  bool is_settled = false;  // the tensor's part is the merged value
  bool is_spent = false;    // ... of all samples: what is kept is which they are, so that none is added twice
  Moment settled_at;        // ... and was so then; what the program writes later is its own
};

// While it lives, sums over samples go on where the gradients `held` stopped: without it a micro-batch that begins
// inside a batch leaf keeps every sample apart until it is joined. `held` are handles that nobody else has; each is
// whole again when the gradients of this micro-batch were added to it.
class Continuation {
 public:
  Continuation(RankState& state, const std::vector<at::Tensor>& held);
  ~Continuation();
  Continuation(const Continuation&) = delete;
  Continuation& operator=(const Continuation&) = delete;

  // The sum of this use so far, which the handle loses; nothing if there is none that a call of this plan can continue.
  std::optional<SampleSum> take(uint64_t use, const SamplePlan& plan);

 private:
  RankState& state_;
  std::unordered_map<uint64_t, Pending::Group*> groups_;  // by use
};

// A handle of this layout: of a record, or of one group that a call will make.
at::Tensor make_handle(layout::Spec spec, at::TensorOptions options, const layout::Coord& coord,
                       std::shared_ptr<Pending> pending);

// Merges what waits, if anything does: afterwards the part is the value, in memory of the sums where it can be.
// Collective. Throws where a derivative formula would compute with the sum of some of the step's samples only: its
// result would depend on the number of micro-batches.
void settle(RankState& state, Meta& meta, const char* op);

// Merges the sums that wait and are within the limits, as far as their batch leaves are complete, together
// (rank_merge.h): a rank keeps its part of them. What the handles stand for stays the same. Others than handles are
// left alone. Collective.
void merge_complete(RankState& state, const std::vector<at::Tensor>& handles, const JoinLimits& limits, const char* op);

// Whether calls were put off that the handle's value needs.
bool is_late(const Meta& meta);

// Whether nothing but calls that were put off makes it a handle: where the stage did not run, ranks have none, and run
// what is carried here.
bool has_own_walk_alone(const Pending& pending);

// Runs the one call that the handle stands for so that its kernel adds to `sum`, in memory of this rank: the handle is
// nothing any more. False: it stands for more, or other handles do for it, or its kernel does not; nothing is added.
bool add_late_to(const at::Tensor& sum, Meta& meta);

// Runs them: the handle is then what it would be had they run in their pass, and no handle any more if it waits for
// nothing else. Of what is not late it does nothing. Not collective but for the calls' own messages.
void run_late(RankState& state, Meta& meta, const char* op);

// settle() for the gradient of a gradient (create_graph), which the program will compute with: throws if samples are
// missing.
void settle_for_good(RankState& state, Meta& meta, const char* op);

// Whether the value is, or was made from, the gradient of some of the step's samples only.
bool is_unfinished(const Meta& meta);

// Throws if the operator, about to read such a value, computes a derivative or adds to a parameter's gradient.
void check_unfinished(const RankState& state, const char* op);

// Whether the node is a parameter's end of the graph.
bool is_accumulating(const torch::autograd::Node* node);

}  // namespace tessera::dtensor
