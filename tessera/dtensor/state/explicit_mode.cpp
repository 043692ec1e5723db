#include "tessera/dtensor/state/explicit_mode.h"

#include "tessera/base/error.h"
#include "tessera/base/hints.h"

namespace tessera::dtensor {

void check_explicit(const RankState& state, const std::string& call, const std::string& argument, const Move& move) {
  if (state.watch.mode() == Mode::kImplicit || !move.communicates) {
    return;
  }
  const std::string message =
      c10::str("[", call, "] needs a redistribution that the program did not write: ", argument, " from ",
               move.from.layout_str(), " to ", move.to.layout_str(), " (rank ", state.ctx.rank,
               "). Write: ", base::redistribute_line(argument, move.to.layout_str()));
  TESSERA_CHECK(state.watch.mode() != Mode::kExplicit, message);
  TORCH_WARN(message);
}

}  // namespace tessera::dtensor
