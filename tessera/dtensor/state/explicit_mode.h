// Explicit mode: every redistribution is written by the program.
#pragma once

#include <string>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Throws in explicit mode (warns in kWarn) if the move communicates, as the program did not write it; shows the line to
// write. `call` says what was called, `argument` names what would be moved.
void check_explicit(const RankState& state, const std::string& call, const std::string& argument, const Move& move);

}  // namespace tessera::dtensor
