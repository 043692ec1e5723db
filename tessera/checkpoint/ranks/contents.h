// What of a program persists, as one rank holds it.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/catalogue/catalogue.h"

namespace tessera::checkpoint {

// A tensor under its logical name: a DTensor, or a plain one on the CPU that all ranks have alike.
struct KeptTensor {
  std::string name;
  catalogue::Role role = catalogue::Role::kParameter;
  at::Tensor tensor;
  std::vector<std::string> aliases = {};
};

// Every rank has the same names, roles and values.
struct Contents {
  std::vector<KeptTensor> tensors;
  catalogue::Values values;
};

// The catalogue of these contents: a plain tensor is whole on every rank of the job. Throws where Catalogue does. On a
// rank's thread; no communication.
catalogue::Catalogue catalogue_of(const Contents& contents);

// The layout of a tensor as checkpoints see it: contiguous; a plain one is whole on every rank of the job.
layout::Spec layout_of(const at::Tensor& tensor);

// This rank's part of a tensor, of which it may be a view. Throws for a DTensor as dtensor::part_outside_program does.
at::Tensor part_of(const at::Tensor& tensor);

// Whether a plain tensor's values lie in the memory of the CPU one behind the other, in row-major order.
bool is_plain_memory(const at::Tensor& tensor);

// Makes `part` the value of this rank's part of a tensor.
void set_part(const at::Tensor& tensor, const at::Tensor& part);

// The tensors in the order of the catalogue's entries.
std::vector<at::Tensor> in_order_of(const catalogue::Catalogue& catalogue, const Contents& contents);

}  // namespace tessera::checkpoint
