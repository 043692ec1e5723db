// Operators whose kernel depends on what else is in the call: run once for each sample, always on the same sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/rules/engine/call.h"
#include "tessera/rules/engine/factor_map.h"

namespace tessera::dtensor {

// A vectorised kernel may compute an element by another function where its vector ends, or add in another order when
// more rows are there. Called with one sample at a time, contiguous, from aligned memory and on one thread, it sees the
// same on every layout. Its bits belong to one kind of processor. A call without samples is one sample.
struct PerSample {
  struct Operand {
    int arg = 0;
    int64_t dim = 0;  // of the samples
  };
  std::vector<Operand> operands;  // that hold samples; the others are read whole
  std::vector<int64_t> outputs;   // the dim of the samples in each
  int64_t rows = 1;               // of a sample, in such a dim
};

// Plans the call; forbids `map` all cuts but those between samples. Throws where samples meet.
std::unique_ptr<PerSample> plan_per_sample(const rules::Call& call, rules::FactorMap& map);

// The local call: the stack holds the arguments with local tensors and leaves with local results.
void run_per_sample(const PerSample& plan, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
