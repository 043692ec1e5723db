// Embedding and head cut over the ranks of a pipeline: where their passes go.
#pragma once

#include <cstdint>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// A large vocabulary makes the first and the last stage slower and larger than the others. Cut over all ranks, each has
// the same part of it ("Balancing Pipeline Parallelism with Vocabulary Parallelism", Yeung et al. 2024), and of each
// micro-batch four passes:
//
// - EMBED_F makes a part of the first stage's input, EMBED_B the gradients of that part;
// - HEAD_F makes a part of the logits from the last stage's output, HEAD_B the gradients of that part.
//
// Softmax needs sums over all parts, for which ranks meet in HEAD_F, and with two barriers in HEAD_B: none goes on
// before all have come. With two barriers all HEAD_F, then all HEAD_B have ended before the last stage's backward
// begins; with one, HEAD_F makes what the backward needs, up to a factor, and HEAD_B may come later. The generator
// begins its backwards later by an interval for each barrier, so that no rank waits: one micro-batch more is held for
// each.
//
// Adds the passes to a schedule of F, B, I and W: each at the first end of a pass of its rank at which what it needs is
// there, if F, I and W took one slot, B two and those of the vocabulary none; EMBED_F no earlier than when two forwards
// before its own has begun. Where there is no B, ranks end their passes together and so do not wait for each other when
// they meet. A rank does each kind in the order of the micro-batches. Throws PlanError of schedules that have other
// actions, of more than one chain, or of other `barriers` than 1 and 2.
Schedule add_vocabulary(const Schedule& schedule, int64_t barriers);

}  // namespace tessera::schedule
