// A compiled step run, in two halves: everybody's parts are on their way between them.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/move/compiled_step.h"

namespace tessera::dtensor {

// A step between its halves. Holds all that the collective may still read or write.
struct IssuedStep {
  at::Tensor result;
  std::vector<at::Tensor> sent = {}, received = {};
  comm::WorkPtr work = {};  // null: nothing is awaited
};

// Packs this rank's part and calls the collective, which need not be done when this returns: until finish_step the
// part may not be written to. Never writes to it. Collective over the step's group, made at first use.
IssuedStep issue_step(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local);

// Waits, and lays out what came: the rank's part after the step, which may share its storage with that before it.
at::Tensor finish_step(const CompiledStep& step, IssuedStep issued);

// Both halves at once, noted in the ledger for `op`.
at::Tensor run_step(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local, const char* op);

}  // namespace tessera::dtensor
