// A call as rules see it.
#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/rules/engine/call.h"

namespace tessera::dtensor {

// The call with the layouts of its operands; plain ones are whole on the mesh of the others. Throws where they live on
// different meshes.
rules::Call make_call(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

// What names it in the program that a rank has run (comm::Program): equal on every rank that makes the same call.
uint64_t program_key_of(const rules::Call& call);
// The same of gradients of one tensor that are added, whichever two of them meet, however they lie.
uint64_t sum_key_of(const rules::Call& call);

}  // namespace tessera::dtensor
