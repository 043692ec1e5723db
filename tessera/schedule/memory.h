// How much of a step's activations each rank holds.
#pragma once

#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// What one micro-batch leaves on a stage, in micro-batch equivalents: 1 is what it leaves on a rank that holds one of
// p equal parts of the model, so that a rank's stages in a V count 1/2 each.
double share_of_stage(const Schedule& schedule);

// The most that each rank holds at once, in micro-batch equivalents. Activations live from the stage's forward, or
// where there is one its RECOMPUTE, until its weight pass (or full backward) has ended. Parts of the vocabulary and
// what is received are not counted. Order alone decides it, not time.
std::vector<double> peaks_of(const Schedule& schedule);

}  // namespace tessera::schedule
