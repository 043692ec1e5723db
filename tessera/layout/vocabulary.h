// Parts of a model that all stages of a pipeline run together, each on its own rows of the vocabulary.
#pragma once

#include <cstdint>

namespace tessera::layout {

// Where parameters are cut over the axis of the stages (`{pp: S(0)}`), what reads them is on no stage: the lookup in
// the table of tokens stands before the first one, the head with the loss behind the last one. In a walk of one stage
// alone (comm::Walk) neither runs, and what is in them is at these, as places of the coordinate beside: `On(3;16383)`.
// Messages have 14 bits for a stage, of which these are the last.
constexpr int32_t kLookup = (1 << 14) - 2;
constexpr int32_t kHead = (1 << 14) - 1;

constexpr bool is_of_vocabulary(int64_t stage) { return stage >= kLookup; }

// A number in the order in which a value comes through the stages.
constexpr int64_t order_of_stage(int64_t stage) { return stage == kLookup ? -1 : stage; }

}  // namespace tessera::layout
