#include "tessera/dtensor/view/part_at.h"

#include "tessera/dtensor/state/explicit_mode.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

at::Tensor part_at(RankState& state, const OpInfo& info, const at::Tensor& tensor,
                   const layout::Placements& placements) {
  Meta& meta = *meta_of(tensor);
  const Spec to = meta.spec.with(placements);
  if (meta.spec == to) {
    return meta.local;
  }
  const MovePtr move = state.engine.moves.find_or_plan(meta.spec, to);
  check_explicit(state, c10::str(info.name, " ", meta.spec.str()), "x", *move);
  at::Tensor local = run_move(state.ctx, *move, meta.local, info.name.c_str());
  if (meta.spec->has_partial) {
    meta.replace(local, to);
    drop_unseen_base(meta);
  }
  return local;
}

}  // namespace tessera::dtensor
