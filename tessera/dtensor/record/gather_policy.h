// How a parameter that is kept in parts is read.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::dtensor {

// What the plan says of it (plan/plan.h), by axes of its mesh, so that it holds for views of the parameter too. One
// object for all parameters of a rank that are read alike: plans tell calls apart by its address.
struct GatherPolicy {
  std::vector<int64_t> read;    // operators gather it over these axes
  std::vector<int64_t> kept;    // ... and it stays gathered over these, until the step ends
  std::vector<int64_t> merged;  // its gradient is merged over these as soon as a backward pass has it
  bool is_grouped = false;      // both are done together with other parameters (GatherGroup)
  bool operator==(const GatherPolicy&) const = default;

  bool keeps_all() const { return kept == read; }
};

// What is stored so, gathered over these axes.
layout::Spec gathered(const layout::Spec& stored, const std::vector<int64_t>& axes);

// Where a gradient goes that a backward pass left at `found`: over the axes that are merged it lies as the parameter is
// stored.
layout::Spec merged_gradient(const layout::Spec& found, const layout::Spec& stored, const GatherPolicy& policy);

}  // namespace tessera::dtensor
