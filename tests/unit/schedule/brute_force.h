// Whether a schedule of passes, sends and receives can run, found without verify's code: rules one by one over pairs of
// actions, and whether a graph of what must come before what has a circle.
#pragma once

#include <cstdint>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Of one chain of stages without passes of the vocabulary, gathers and reductions.
bool can_run_by_force(const Schedule& schedule, int64_t buffers);

}  // namespace tessera::schedule
