// The kernels of tessera::contract (equation.h), on plain tensors.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::rules {

// The contraction by one mm or bmm; with an addend where libtorch's linear has one, by its addmm.
at::Tensor contract_plain(const at::Tensor& a, const at::Tensor& b, c10::string_view text,
                          const std::optional<at::Tensor>& like, const std::optional<at::Tensor>& addend);

// Rule::adds_to of it: a product of two matrices goes into `sum` by one addmm, where the result would lie as it does.
bool add_contraction(const at::Tensor& sum, c10::ArrayRef<c10::IValue> args);

}  // namespace tessera::rules
