// What goes between the stages of a pipeline and the parts of its vocabulary, whose walks a rank takes one by one.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/move/compiled_step.h"

namespace tessera::dtensor {

// Of messages between stages, and parts of the vocabulary (layout/vocabulary.h), of the micro-batch that runs.
int64_t tag_between(const comm::RankContext& ctx, int64_t from_stage, int64_t to_stage);

// What another walk of this rank gave under the tag by this step. Throws if there is nothing, or if it has other sizes
// than the step says, as a message between ranks does.
at::Tensor taken_from_own(comm::RankContext& ctx, const CompiledStep& step, int64_t tag);

// Note [Handing over]. In a walk of one stage a part of the vocabulary is a place beside it, and a value goes there by
// one step; in the walk of the part all ranks read it. So a stage that has such a value sends it to every rank at once,
// which takes it in its walk of the part. What a part makes for a stage its rank leaves in its own box: of the head's
// gradient the sum, over which ranks meet. Ranks do not meet in a lookup, which no rank waits for: they send their
// rows, and the walk of the stage adds them up.

// Runs a step between a walk of a stage and one of a part; nothing if it is another, or one whose sum ranks meet for.
// Not collective.
std::optional<at::Tensor> try_hand_over(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local);

// Of such a sum, or any other value that a part made for a stage, what this walk has: nothing, for it waits for that
// stage's. Other steps' results are as they are.
at::Tensor left_for_stage(comm::RankContext& ctx, const CompiledStep& step, at::Tensor result);

}  // namespace tessera::dtensor
