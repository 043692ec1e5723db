#include "tessera/parallel/lattice_notes.h"

#include <utility>

#include <c10/util/Exception.h>

#include "tessera/base/text.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

using dtensor::RankState;

namespace {

int64_t ranks_of(const plan::Plan& plan) {
  int64_t ranks = 1;
  for (const std::string& axis : plan.batch_axes) {
    ranks *= plan.mesh.axis(plan.mesh.axis_index(axis)).size;
  }
  return ranks;
}

// Of these samples of a step, whose leaves all have one number of samples but the last.
int64_t leaves_of(int64_t samples, int64_t of_step) {
  const int64_t unit = plan::sample_unit(of_step, RankState::require().exact.lattice());
  return (samples + unit - 1) / unit;
}

// How many of the ranks have something of so many parts: each takes as many as the first.
int64_t busy_ranks(int64_t parts, int64_t ranks) {
  const int64_t most = (parts + ranks - 1) / ranks;
  return (parts + most - 1) / most;
}

}  // namespace

void LatticeNotes::note_idle(const char* who, const plan::Plan& plan, int64_t samples, int64_t of_step) {
  const RankState& rank = RankState::require();
  if (has_noted_idle_ || !rank.exact.lattice() || rank.ctx.rank > 0 || samples == 0) {
    return;
  }
  const int64_t ranks = ranks_of(plan), leaves = leaves_of(samples, of_step), busy = busy_ranks(leaves, ranks);
  if (busy >= busy_ranks(samples, ranks)) {
    return;
  }
  has_noted_idle_ = true;
  const int64_t passes = (of_step + samples - 1) / samples;
  TORCH_WARN("[", who, "] numerics exact: ", ranks - busy, " of ", ranks, " ranks of {",
             base::join(plan.batch_axes, ", "), "} have no samples, for ", samples, " samples of a step of ", of_step,
             " are ", leaves, " of its batch leaves. Accepted: a lattice with batch=", ranks * passes,
             " (the same for every run to be compared)", passes > 1 ? ", fewer passes" : "", ", or fewer ranks.");
}

void LatticeNotes::note_blocks(const plan::Plan& plan, const plan::Rows& rows) {
  if (std::exchange(has_noted_blocks_, true) || RankState::require().ctx.rank > 0) {
    return;
  }
  const int64_t ranks = ranks_of(plan);
  TORCH_WARN("[job] numerics exact: gradients are merged once a step and not in each of ", rows.micro_batches(),
             " micro-batches, for the ", leaves_of(rows.samples(), rows.samples()), " batch leaves of ", rows.samples(),
             " samples do not give each of ", ranks,
             " ranks some of every one. Accepted: a lattice with batch=", rows.micro_batches() * ranks,
             " (the same for every run to be compared) and as many samples, fewer micro-batches, or a plan that merges "
             "once (sharding=state).");
}

}  // namespace tessera::parallel
