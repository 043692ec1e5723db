// The `stock` generator of a rank: draws that walk the one stream of libtorch.
#pragma once

#include "tessera/dtensor/state/state.h"
#include "tessera/random/stock_cpu.h"

namespace tessera::dtensor {

// The generator among the arguments, if the program names one. It is obeyed, whichever generator the rank uses: each
// rank has its own copy, with the same values.
at::Generator named_generator(c10::ArrayRef<c10::IValue> args);

// That, or else the rank's, which is undefined under `counter`.
at::Generator stock_generator_of(RankState& state, c10::ArrayRef<c10::IValue> args);

// The tensor that a DTensor is on one device.
random::StockTensor stock_tensor_of(const Spec& spec);

// Runs a random operator on plain tensors with the rank's generator in the place of libtorch's.
void call_with_stock(RankState& state, const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Leaves the generator of an operator that is recorded and not run, the rank's or the one among `args`, where the
// operator would leave it; `args` keeps a copy as it was before, to be drawn from later. `result` is what it returns,
// as a meta tensor. Throws for operators that draw according to values.
void skip_recorded(RankState& state, const c10::OperatorHandle& op, std::vector<c10::IValue>& args,
                   const at::Tensor& result);

}  // namespace tessera::dtensor
