// Calls of operators whose bits are compared.
#pragma once

#include "tests/audit/samples.h"
#include "tests/ranks/support.h"

namespace tessera::ranks {

using audit::Sample;
using audit::Samples;

// The audit's samples, and others whose sizes fill their leaves unevenly.
const Samples& exact_samples();

bool writes(const Sample& sample);

// Reals of both signs over forty binary orders, so that another order of additions changes bits.
at::Tensor wild(c10::IntArrayRef sizes, c10::ScalarType dtype, int64_t salt);

// The sample with such values; nothing of it changes but the reals.
Sample made_wild(Sample sample, c10::ScalarType dtype);

// What a call leaves: whole tensors, or what it says.
struct CallOutcome {
  std::vector<at::Tensor> tensors;
  std::string error;
};

// Runs the operator on its tensors distributed as `layouts` say.
CallOutcome run_call(const Sample& sample, const Mesh& mesh, const std::vector<Placements>& layouts);

// Where the outcomes differ; empty if nowhere. Signs of zeros count.
std::string difference(const CallOutcome& found, const CallOutcome& expected);

}  // namespace tessera::ranks
