// Runs a body on all ranks of a job, wherever they are.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/comm/join/process.h"

namespace tessera::launch {

// Whether a launcher started this process as one of several.
bool is_launched();

// Runs `body(rank)` on `ranks` ranks: under a launcher this process is one of them (comm::run_process), else all of
// them are threads here (comm::run_ranks). The body and what it computes are the same; under a launcher what it leaves
// in memory is this rank's alone. Rank threads that go on for five seconds after a failure or a signal end the process
// (comm::RunOptions::grace). Throws ConfigError if the launcher started another number of processes.
void run_job(int64_t ranks, const std::function<void(int64_t rank)>& body, const comm::ProcessOptions& options = {});

}  // namespace tessera::launch
