// Running what rules::plan_exact_sum decided.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/dtensor/move/redistribute.h"
#include "tessera/layout/joined_axes.h"
#include "tessera/rules/exact/sum_plan.h"

namespace tessera::dtensor {

using rules::ExactSum;
using sums::NodePlan;
using sums::SamplePlan;

// One merge over these axes for `op`, noted in the ledger. Collective over the axes.
std::vector<comm::NodeSum> run_merge(comm::RankContext& ctx, const layout::JoinedAxes& line, const char* op,
                                     const comm::Merge& merge);

// Sums on the way from their merges to a layout. Where the next steps of the move would keep a slice of what axes
// merge, the merge over these axes scatters, so that no rank gets what it would drop.
class ScatteringMove {
 public:
  // From `from`, Replicate on each axis that will be merged: `axes`.
  ScatteringMove(comm::RankContext& ctx, Moves& moves, layout::Spec from, layout::Spec to, std::vector<int64_t> axes)
      : ctx_(&ctx), moves_(&moves), now_(from), to_(to), left_(std::move(axes)) {}

  // The merge over these axes, given in their order on the mesh. Every axis is asked for once.
  sums::Merging next(const std::vector<int64_t>& axes);

  // The layout after these merges, and the move that is left; null: none.
  const layout::Spec& now() const { return now_; }
  const layout::Coord& coord() const { return ctx_->coord(now_->mesh); }  // of this rank
  MovePtr rest() const { return now_ == to_ ? nullptr : moves_->find_or_plan(now_, to_); }

 private:
  std::optional<sums::Scatter> scatter_over(const std::vector<int64_t>& axes);
  layout::Spec with_sums() const;

  comm::RankContext* ctx_;
  Moves* moves_;
  layout::Spec now_, to_;
  std::vector<int64_t> left_;  // axes
};

// The sum, whole along the summed dim, and cut where the plan's merges scatter; of 16 bits it is merged in float32 and
// rounded at the root. `args` are the call's, local.
// Collective over the axes that cut the dim.
at::Tensor run_node_sum(comm::RankContext& ctx, const ExactSum& sum, c10::ArrayRef<c10::IValue> args, const char* op);

}  // namespace tessera::dtensor
