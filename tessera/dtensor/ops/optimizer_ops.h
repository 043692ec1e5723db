// Steps of optimizers that libtorch lacks, as operators: one call for all tensors of a group of parameters.
//
// On plain tensors and on DTensors of any layout (fused_update.h) they give the same bits, in both numerics: a tensor's
// elements, or its blocks, are apart. Parameters are written in place, as state is; gradients are read. Lists are of
// one length. float32, and but for eight bits float64; others are refused.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/kernels/maps/optimizer_options.h"

namespace tessera::dtensor {

// The step of kernels::lion_step: `averages` have their parameters' sizes.
void lion_step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
               const std::vector<at::Tensor>& averages, const kernels::Lion& options);

// The step of kernels::ema_step: `averages` have their values' sizes.
void ema_step(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values, double decay);

// A moment of each parameter in eight bits: uint8 codes of the parameter's sizes, and the float32 scales of the blocks
// of each row.
struct Moments8bit {
  std::vector<at::Tensor> codes, scales;
};

// The sizes of the scales for a parameter: [rows, blocks of a row], where a row is an index of the first dim; [blocks]
// of a parameter of one dim or none, which is one row.
std::vector<int64_t> sizes_of_scales(c10::IntArrayRef parameter);

// The step of kernels::adamw_8bit_step; `steps` are the parameters' own. As DTensors, codes and scales must be cut as
// the parameter is, between blocks.
void adamw_8bit_step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
                     const Moments8bit& averages, const Moments8bit& squares, const std::vector<int64_t>& steps,
                     const kernels::AdamW& options);

}  // namespace tessera::dtensor
