// What is added to the passes of a schedule, or done to them. Each gives a new schedule.
#pragma once

#include <cstdint>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// A send behind each pass whose result a stage of another rank needs, and a receive where it is needed, from stage to
// stage. Two stages on one rank exchange nothing. A rank receives from another in the order in which that one sends: a
// receive stands right before the first pass that needs it or something that was sent later. Barriers of the vocabulary
// are collectives inside its passes, and are not added. Throws PlanError if the schedule has sends or receives.
Schedule add_communication(const Schedule& schedule);

// UNSHARD before the first pass of a stage and RESHARD after its last one. At most `most` of a rank's stages are whole
// at once, all of them if 0; a stage gives way whose next pass is the farthest. Throws PlanError if it has them
// already, or of a negative number.
Schedule add_gathers(const Schedule& schedule, int64_t most = 0);

// REDUCE_GRAD right behind the last weight pass of each stage. Throws PlanError if it has them already.
Schedule add_reduces(const Schedule& schedule);

// RECOMPUTE right before the backward of every stage and micro-batch. Throws PlanError if it has them already.
Schedule add_recompute(const Schedule& schedule);

// I, then W in place of every B; B in place of every I with its W right behind it. What lies between passes (sends of
// an I's gradient) keeps them apart.
Schedule split_backward(const Schedule& schedule);
Schedule merge_backward(const Schedule& schedule);

// The schedule without its sends, receives, UNSHARD, RESHARD and REDUCE_GRAD.
Schedule only_compute(const Schedule& schedule);

}  // namespace tessera::schedule
