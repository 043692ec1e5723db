// Draws according to values, from the `counter` generator: made of its plain fills, so that they follow the sample and
// the element as those do, on plain tensors and on DTensors in any layout.
#pragma once

#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// The result of a random operator, from its arguments in the order of its schema. Runs below autograd.
using CounterDraw = at::Tensor (*)(c10::ArrayRef<c10::IValue> args);

// How `op` (with overload, as in aten::multinomial) is drawn; null for operators that no fills make up.
CounterDraw find_counter_draw(const std::string& op);

// For those: a generator of libtorch's kind for one draw, seeded by the next place of the rank's stream, so that every
// rank that computes the whole draws the same.
at::Generator generator_for_draw(RankState& state);

}  // namespace tessera::dtensor
