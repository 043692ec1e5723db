// Refusals name the call that the program wrote, where an operator inside of it is refused.
#pragma once

#include <optional>
#include <string>

#include <c10/util/Exception.h>

#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

// The outermost of libtorch's functions on this thread's stack: `cdist` while `_cdist_forward` runs because the program
// called at::cdist or torch.cdist. Nothing where the operator was called through the dispatcher alone (torch.ops).
// Walks the stack: for errors only. Thread-safe.
std::optional<std::string> call_of_program();

// Throws the error again. If it speaks of `info`, which the program did not call itself, its message begins with the
// call first, or in backward with the node: `[cdist -> _cdist_forward {tp: S(0)}] ...`, `[CdistBackward0 ->
// _cdist_backward ...] ...`, and it says how to find the line. To be called while the error is handled.
[[noreturn]] void rethrow_with_call(const c10::Error& error, const OpInfo& info);

}  // namespace tessera::dtensor
