#include "tessera/parallel/same_batch.h"

#include "tessera/base/error.h"

namespace tessera::parallel {

void verify_same_batch(const std::vector<dtensor::NamedValue>& batch, const plan::Plan& plan, const char* who,
                       const std::string& parts) {
  auto& state = dtensor::RankState::require();
  const std::string difference = dtensor::difference_between_ranks(state, plan.mesh, batch);
  TESSERA_CHECK(difference.empty(), "[", who, "] the ranks were given different batches: ", difference, " (rank ",
                state.ctx.rank,
                "). Accepted: the whole batch "
                "on every rank, which the model cuts itself, so read or draw the same one on all ranks (one seed, no "
                "sampler of a rank's own)",
                plan.batch_axes.empty() ? "" : "; or, where each data rank has its own rows (a sampler's), " + parts);
}

}  // namespace tessera::parallel
