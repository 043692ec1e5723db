// How one kind of call runs: everything that depends on shapes and layouts, decided at the first one.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/plan/exact_sum.h"
#include "tessera/dtensor/plan/per_sample.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::dtensor {

struct CallPlan;
struct Invocation;
struct OpInfo;

// Runs a planned call: takes its arguments from the stack and leaves its results there.
using Executor = void (*)(Invocation& call, const CallPlan& plan);

// A call that was put off shares its plan: it may outlive the rank that planned it.
struct CallPlan : std::enable_shared_from_this<CallPlan> {
  // Of PlanCache, which may drop a plan that is neither kept nor held.
  uint64_t id = 0;
  bool is_kept = false;
  mutable int64_t holders = 0;

  struct OperandMove {
    int arg = 0;
    int item = -1;  // of a tensor list
    MovePtr move;
    bool gathers_parameter = false;  // as its GatherPolicy says
    layout::Spec there = {};         // where it is sent first, from a coordinate of an axis, and stays; null: nowhere
  };
  struct Output {
    layout::Spec spec;
    bool defined = true;
    bool is_view = false;
    bool detached_view = false;   // a view whose operand had to communicate
    MovePtr move;                 // to the layout that the plan wants
    layout::Spec final_spec;      // after `move`
    MovePtr hand_on = {};         // from there to a stage, of what all stages made for it
    mutable Prototype prototype;  // of the result

    const layout::Spec& result_spec() const { return hand_on ? hand_on->to : final_spec; }
  };

  Executor execute = nullptr;  // chosen when all else is decided
  std::vector<OperandMove> moves;
  std::vector<Output> outputs;    // of all returns, lists flattened
  std::vector<int> list_returns;  // for each return: the length of the list, or -1 for a single tensor
  bool reshape = false;           // the local call gives operand 0 the shape `local_shape` (view and its kin)
  std::vector<int64_t> local_shape;
  mutable Prototype local_prototype;  // of parts of that shape
  std::vector<std::pair<int, c10::IValue>> rewritten;
  rules::LocalKernel local = nullptr;
  std::unique_ptr<rules::LocalCall> local_call;
  std::unique_ptr<ExactSum> exact;        // in `exact` numerics, of a call that sums
  std::unique_ptr<PerSample> per_sample;  // ... of one whose kernel runs for each sample
  rules::Decomposition decompose = nullptr;
  uint64_t program_key = 0;            // equal on every rank that runs the same call
  std::vector<layout::Spec> operands;  // as the call came in, before moves
  std::vector<bool> operand_is_parameter;
  std::vector<const GatherPolicy*> gathers;  // of parameters that operators read otherwise; empty: there are none
  std::optional<at::ScalarType> computed_in =
      std::nullopt;                       // the dtype in which operands are read, of such a parameter
  bool is_absent = false;                 // the call runs on other ranks: this one gets parts of no elements
  bool makes_parameter_gradient = false;  // no other derivative waits for the result
  bool is_long = false;                   // libtorch would give a loop over an operand to several threads
  // How the parts lay with which it was tried whether the kernel adds to a sum with the bits of an addition; 0: not
  // yet.
  mutable uint64_t tried_strides = 0;
  mutable bool adds_in_kernel = false;  // ... and whether it does

  // The policy by which operators read this operand; null: as it came in.
  const GatherPolicy* gather_of(size_t operand) const { return gathers.empty() ? nullptr : gathers[operand]; }

  // Whether a call of it is more than running it.
  bool is_slow() const { return !is_kept || decompose; }
};

// What a local kernel may know of its place: what this rank holds of each operand and output.
rules::LocalCall make_local_call(const OpInfo& info, const rules::Propagation& decided, const layout::Coord& coord);

}  // namespace tessera::dtensor
