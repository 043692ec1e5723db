// Gradients that the kernel which makes them adds to those of other micro-batches.
#pragma once

#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

// Note [Adding in the kernel]. The gradients of a step's micro-batches are added up, and most of them are products,
// whose kernels can add to what is there: nothing is written to be read once and added. Whether the bits are those of
// a product and an addition is up to the kernel that the BLAS has for these sizes: it adds once to each element where
// it sums over all rows at once (MKL: up to some hundreds, where adding counts most), and not where it goes by blocks
// of them. So a plan tries, on numbers of its own, and keeps to what it found; a step's bits do not depend on it.

// Whether this may be so for calls of the plan: nothing moves their result, and they have not been tried in vain.
bool may_add_in_kernel(const OpInfo& info, const CallPlan& plan);

// Adds what a call gives to `sum`, its parts being on this rank. False: it does not, and `sum` is as it was. Below
// interception, without gradients.
bool add_in_kernel(const OpInfo& info, const CallPlan& plan, const std::vector<c10::IValue>& parts,
                   const at::Tensor& sum);

}  // namespace tessera::dtensor
