// Parameters that a job reads, and calls of the model beside the job.
#pragma once

#include <string>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// From now on a job runs the forward passes that read this parameter of the calling rank.
void read_by_job(const ParameterInfo& parameter);

// Throws if a job reads `parameter`, and here the program itself does, outside of the job and with gradients, in an
// operator that takes a plain tensor: the batch of `model(...)`, where `job(...)` was meant.
void verify_in_job(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args,
                   const ParameterInfo& parameter);

}  // namespace tessera::dtensor
