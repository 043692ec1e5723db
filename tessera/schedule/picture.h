// Pictures of a schedule in time: as text, as SVG, as a trace for chrome://tracing and Perfetto.
#pragma once

#include <string>

#include "tessera/schedule/replay.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// A row for each rank, time to the right: F forward, B backward, I and W its halves, R recomputing, S and T the head's
// forward and backward, E and D the embedding's, each with its micro-batch; small letters are the rank's later stages.
// `-` is where a pass goes on, a blank where the rank waits. What takes no time is not drawn. `replay` must be of this
// schedule, here and below.
std::string to_text(const Schedule& schedule, const Replay& replay);

// The same with a colour for each kind, darker for later stages of a rank. A whole file.
std::string to_svg(const Schedule& schedule, const Replay& replay);

// A lane for each rank, a unit of the costs as a millisecond. Actions that take no time are in it, too. A whole file.
std::string to_chrome_trace(const Schedule& schedule, const Replay& replay);

}  // namespace tessera::schedule
