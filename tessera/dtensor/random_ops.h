// Random numbers of DTensors: each rank draws its own part of the values that one device would draw.
#pragma once

#include <optional>
#include <string>

#include "tessera/dtensor/dispatch.h"

namespace tessera::dtensor {

// What a random operator draws, from its arguments; nothing for operators that are not plain fills.
std::optional<random::Distribution> distribution_of(const std::string& op, c10::ArrayRef<c10::IValue> args, c10::ScalarType dtype);

// Fills this rank's part of a tensor. Rows that carry a batch label draw by sample of the step (`origin`).
void fill_local(RankState& state, at::Tensor& local, const Spec& spec, const Origin* origin, const random::Stream& stream,
                const random::Distribution& distribution);

// Before all of a tensor is overwritten: a Partial becomes Replicate without being merged.
void drop_terms(Meta& meta);

// Kernels; see find_special.
void random_inplace(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
void random_like(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
void bernoulli_tensor(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
void native_dropout(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
