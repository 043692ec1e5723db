// One pass over the arguments of a call: the key of its plan, and what is special about its operands.
#pragma once

#include <ATen/core/ivalue.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/call_flags.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// What one scan of the arguments finds.
struct Scan {
  PlanCache::Key key;
  uint32_t flags = 0;                        // CallFlags of the operands
  const Origin* origin = nullptr;            // of the first operand that has one
  Recorder* recorder = nullptr;              // of a deferred operand
  const ParameterInfo* parameter = nullptr;  // of the last operand that is one
};

// Adds what `args` are to an empty scan. The key tells apart all calls that need plans of their own.
void scan_arguments(const OpInfo& info, c10::ArrayRef<c10::IValue> args, Scan& scan);

uint64_t hash_of(const PlanCache::Key& key);

}  // namespace tessera::dtensor
