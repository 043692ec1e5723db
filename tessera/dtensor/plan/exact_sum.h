// How one kind of call sums in `exact` numerics: decided with its plan, run on every call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/rules/engine/propagate.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::dtensor {

// Where the summed dim stands in the operands.
struct SummedDim {
  int arg = 0;  // of the call, a single tensor
  int64_t dim = 0;
};

// How one merge changes the layout of a sum.
struct Merging {
  std::optional<comm::Merge::Scatter> scatter;  // nothing: it replicates
  layout::Spec from, to;                        // Partial where merges are still to come; for the flight recorder
};

// A sum over one dim that is finished at once: this rank computes the nodes that cover its leaves, the ranks of the
// axes that cut the dim merge them.
struct NodePlan {
  struct Run {
    layout::Node node;
    int64_t begin = 0, length = 0;  // elements of this rank's part of the dim
  };
  struct Axis {
    int64_t axis = 0;
    comm::MergePlan plan;
    Merging merging;
  };
  layout::Node root;
  std::vector<SummedDim> dims;
  std::vector<Run> runs;
  std::vector<Axis> axes;  // in the order of the merges, fastest first
};

// How the tokens of a step are cut into leaves, (batch leaf, sequence leaf) with the sequence innermost, and what is
// here.
struct TokenLeaves {
  int64_t samples = 0;      // of the step
  int64_t sample_leaf = 1;  // samples of a batch leaf
  int64_t sequence_leaves = 1;
  layout::Node root;
  bool operator==(const TokenLeaves&) const = default;

  layout::Range samples_of(int64_t leaf) const;  // of a batch leaf
};

// A sum over samples, which waits for the step's other samples: see pending.h.
struct SamplePlan {
  // An operand to cut to the tokens of one sample: `samples` is the dim of the samples, or of [outer, samples,
  // positions / outer]; `positions` that of the positions, or -1.
  struct Operand {
    int arg = 0;
    int64_t samples = -1;
    int64_t positions = -1;
  };
  struct Piece {
    int64_t leaf = 0;               // of the sequence
    int64_t begin = 0, length = 0;  // positions of this rank's part
  };
  TokenLeaves leaves;
  std::vector<Operand> operands;
  std::vector<Piece> pieces;
  layout::Range rows;               // of the micro-batch, on this rank
  int64_t micro_batch = 0;          // samples of the micro-batch, on all ranks
  int64_t outer = 1;                // dims that stand before the samples in their dim, which is whole then
  int64_t positions = 1;            // of a sample, in the dim of the samples
  std::vector<int64_t> merge_axes;  // fastest leaves first
  layout::Spec terms;               // the layout of the sums, Replicate where they will be merged
};

struct ExactSum {
  const rules::ExactRule* rule = nullptr;
  rules::LocalCall local;
  int64_t leaf = 0;  // elements of a leaf of the summed dim, of a NodePlan
  std::unique_ptr<NodePlan> node;
  std::unique_ptr<SamplePlan> sample;
};

// One merge over `axis` of `mesh` for `op`, noted in the ledger. Collective over the axis.
std::vector<comm::NodeSum> run_merge(comm::RankContext& ctx, const layout::Mesh& mesh, int64_t axis, const char* op,
                                     const comm::Merge& merge);

// Decides how output 0 of the call is summed. Null if it sums nothing. Throws where no exact form exists, with what
// works.
std::unique_ptr<ExactSum> plan_exact_sum(comm::RankContext& ctx, const layout::Lattice& lattice,
                                         const rules::Call& call, const rules::ExactRule& rule,
                                         const rules::FactorMap& map, const rules::Propagation& decided);

// Sums on the way from their merges to a layout. Where the next step of the move would keep a slice of what an axis
// merges, the merge over that axis scatters, so that no rank gets what it would drop.
class ScatteringMove {
 public:
  // From `from`, Replicate on each axis that will be merged: `axes`.
  ScatteringMove(comm::RankContext& ctx, Moves& moves, layout::Spec from, layout::Spec to, std::vector<int64_t> axes)
      : ctx_(ctx), moves_(moves), now_(from), to_(to), left_(std::move(axes)) {}

  // The merge over `axis`. Asked once for each, in their order.
  Merging next(int64_t axis);

  // The layout after these merges, and the move that is left; null: none.
  const layout::Spec& now() const { return now_; }
  MovePtr rest() const { return now_ == to_ ? nullptr : moves_.find_or_plan(now_, to_); }

 private:
  std::optional<comm::Merge::Scatter> scatter_over(int64_t axis);
  layout::Spec with_sums() const;

  comm::RankContext& ctx_;
  Moves& moves_;
  layout::Spec now_, to_;
  std::vector<int64_t> left_;  // axes
};

// The sum, whole along the summed dim, and cut where the plan's merges scatter. `args` are the call's, local.
// Collective over the axes that cut the dim.
at::Tensor run_node_sum(comm::RankContext& ctx, const ExactSum& sum, c10::ArrayRef<c10::IValue> args, const char* op);

}  // namespace tessera::dtensor
