// Whether a schedule can run, and gives every gradient once.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

struct VerifyOptions {
  // How many messages one rank may have sent to another that this one has not taken yet; a send waits for room.
  int64_t buffers = 2;
  // The most that a rank may hold at once, in micro-batch equivalents (memory.h).
  std::optional<double> peak = std::nullopt;
};

// Throws PlanError with rank, position and action of the first that is wrong, unless
//
// - every action is of a stage that lies on its rank and of a micro-batch that goes through it;
// - every stage runs every micro-batch's forward once and makes its input gradient and weight gradient once (B, or I
//   and W); with `barriers`, every rank runs its part of embedding and head once, forward and backward;
// - what a pass needs (results.h) is made before it, on its own rank by an earlier action;
// - ranks come to an end where they meet in passes of the head;
// - without sends and receives, ranks that wait for each other's results come to an end;
// - with them: each result that another rank needs is sent once and received once, nothing else is; it is sent after it
//   was made and received before it is used; a rank receives in the order in which the other sent to it; and ranks come
//   to an end with so many `buffers`;
// - where parameters are gathered at all, a stage is gathered while it runs, never twice, and freed in the end; where
//   gradients are reduced at all, each stage's once, after its last weight gradient;
// - a stage is recomputed at most once a micro-batch, between its forward and its backward;
// - no rank holds more than `peak`.
//
// In time of the actions; the ranks' actions are walked, not searched: with one queue for each pair of ranks it does
// not matter who goes first.
void verify_schedule(const Schedule& schedule, const VerifyOptions& options = {});

}  // namespace tessera::schedule
