#include "tessera/dtensor/dispatch/step_gradients.h"

#include <utility>

#include <torch/csrc/autograd/function.h>

#include "tessera/dtensor/move/joined_moves.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

// Gradients are complete where no pass runs.
bool is_between_passes(const RankState& state) { return !state.pass.region() && !torch::autograd::get_current_node(); }

}  // namespace

bool merge_step_gradients(RankState& state, const Meta& read) {
  if (!is_between_passes(state)) {
    return false;
  }
  std::vector<Meta*> merged;
  std::vector<MovePtr> moves;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : state.engine.parameters.with_gradients(read)) {
    Meta* meta = meta_of(parameter.grad());
    if (meta->spec->has_partial && !meta->is_pending()) {
      merged.push_back(meta), parts.push_back(meta->local);
      moves.push_back(
          state.engine.moves.find_or_plan(meta->spec, meta->spec.with(meta_of(parameter)->spec->placements)));
    }
  }
  const std::vector<at::Tensor> sums = run_moves(state.ctx, moves, std::move(parts), kSmallTogether, "gradients");
  for (size_t i = 0; i < merged.size(); ++i) {
    merged[i]->replace(sums[i], moves[i]->to);
    drop_unseen_base(*merged[i]);
  }
  return !merged.empty();
}

std::vector<at::Tensor> waiting_gradients(const RankState& state, const Meta& read) {
  std::vector<at::Tensor> waiting;
  if (is_between_passes(state)) {
    for (const at::Tensor& parameter : state.engine.parameters.with_gradients(read)) {
      const Meta* meta = meta_of(parameter.grad());
      if (meta->is_pending() && meta != &read) {
        waiting.push_back(parameter.grad());
      }
    }
  }
  return waiting;
}

}  // namespace tessera::dtensor
