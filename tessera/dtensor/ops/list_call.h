// What kernels of lists of tensors share. Internal to this room.
#pragma once

#include <vector>

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// The call's arguments on top of the stack, valid until it changes.
c10::ArrayRef<c10::IValue> arguments_of(const OpInfo& info, const torch::jit::Stack& stack);

// The DTensors that the call writes; `args` are the first of its arguments.
std::vector<MetaPtr> written_tensors(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

// Tells the program's hash of the call and the layouts of its DTensors.
void note_list_call(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args);

}  // namespace tessera::dtensor
