// Sample calls for every operator that has a rule.
#pragma once

#include <string>
#include <vector>

#include "tests/audit/ranks.h"

namespace tessera::audit {

struct Sample {
  std::string op;
  std::vector<c10::IValue> args;
  Compare compare = Compare::kValues;
};

using Samples = std::vector<Sample>;

// Deterministic values: reals in (0, 1), integers in [0, below).
at::Tensor reals(c10::IntArrayRef sizes);
at::Tensor integers(int64_t below, c10::IntArrayRef sizes);
at::Tensor bools(c10::IntArrayRef sizes);

// The call of `op` with these tensors in order and the named other arguments.
Sample sample(const std::string& op, const std::vector<at::Tensor>& tensors, const rules::testing::Named& rest = {},
              Compare compare = Compare::kValues);

// A list of indices, undefined where there is none.
c10::IValue indices(const std::vector<at::Tensor>& tensors);

// Written by hand, by family.
void add_complex_samples(Samples& samples);
void add_contraction_samples(Samples& samples);
void add_grouped_samples(Samples& samples);
void add_factory_samples(Samples& samples);
void add_image_samples(Samples& samples);
void add_indexing_samples(Samples& samples);
void add_loss_samples(Samples& samples);
void add_norm_samples(Samples& samples);
void add_reduction_samples(Samples& samples);
void add_view_samples(Samples& samples);

// For operators whose tensors broadcast against each other: from the schema, tried until the operator accepts them.
void add_elementwise_samples(const std::string& op, Samples& samples);

// Those written by hand and, for operators without, those from the schema.
Samples all_samples();

}  // namespace tessera::audit
