// Random numbers of DTensors: each rank draws its own part of the values that one device would draw.
#pragma once

#include <optional>

#include <ATen/core/stack.h>

#include "tessera/dtensor/random/stock.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// What a random operator or factory draws, from the generator that the rank uses.
struct Draw {
  std::optional<random::Distribution> counter;
  std::optional<random::StockDraw> stock;
  at::Generator generator;  // of `stock`
};

// Nothing for operators that are not plain fills, or that the rank's generator does not draw.
std::optional<Draw> draw_of(RankState& state, const rules::Draws& draws, c10::ArrayRef<c10::IValue> args,
                            c10::ScalarType dtype);

// For draws according to values that no fills make up: a generator of libtorch's kind for one draw, seeded by the next
// place of the rank's stream, so that every rank that computes the whole draws the same.
at::Generator generator_for_draw(RankState& state);

// Whether the samples that these rows are of are numbered as the rows.
bool starts_at_first_sample(const Origin* origin);

// Fills this rank's part of a tensor. `counter`: rows that carry a batch label draw by sample of the step (`origin`).
// `stock`: the part of what one device draws for the whole tensor.
void fill_local(RankState& state, at::Tensor& local, const Spec& spec, const Origin* origin, Draw draw);

// Before all of a tensor is overwritten: a Partial becomes Replicate without being merged.
void drop_terms(Meta& meta);

// Kernels; see special_kernel.
void random_inplace(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
void random_like(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
void bernoulli_tensor(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
void native_dropout(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
