// Rank threads that are a job of processes to themselves: each joins with its own connections, Gloo and a stand-in for
// NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/unit/comm/stand_in.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm {

// Runs `body(rank)` on `ranks` threads, joined over `hub`; what each threw, or nothing.
std::vector<std::exception_ptr> run_devices(StandInHub& hub, int64_t ranks,
                                            const std::function<void(int64_t rank)>& body,
                                            std::chrono::milliseconds deadline = std::chrono::milliseconds(20000));

// The same, where nothing may be thrown and no calls may have met that do not match.
void run_devices_well(int64_t ranks, const std::function<void(int64_t rank)>& body, uint64_t seed = 1);

// The bits of a reduction of the members' `values`: member 0 first, but where the library adds (floating point, parts
// of equal sizes) as the stand-in does, the last member first.
at::Tensor combine_as_stand_in(std::vector<at::Tensor> values, ReduceOp op, bool is_even = true);

// `E: its message`, E one of CommError, CommTimeout, RankFailed, DivergenceError, another; empty for null.
std::string described(const std::exception_ptr& error);

}  // namespace tessera::comm
