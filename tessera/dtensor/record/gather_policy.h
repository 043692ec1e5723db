// How a parameter is read that is kept in parts, or in another dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::dtensor {

// What the plan says of it (plan/plan.h), by axes of its mesh, so that it holds for views of the parameter too. One
// object for all parameters of a rank that are read alike: plans tell calls apart by its address.
struct GatherPolicy {
  std::vector<int64_t> read = {};     // operators gather it over these axes
  std::vector<int64_t> fetched = {};  // it is On a coordinate of these, and operators elsewhere fetch it
  bool is_kept = false;               // a copy stays until the step ends,
  std::vector<int64_t> kept = {};     // ... gathered over these
  std::vector<int64_t> merged = {};   // its gradient is merged over these as soon as a backward pass has it
  bool is_grouped = false;            // both are done together with other parameters (GatherGroup)
  // Operators read it in this dtype, and what they read beside it; it is cast before it is gathered.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  std::optional<c10::ScalarType> merge_dtype = std::nullopt;  // of gradients that are merged; else the parameter's
  bool operator==(const GatherPolicy&) const = default;

  bool reads_otherwise() const { return !read.empty() || !fetched.empty() || dtype; }
  bool keeps_all() const { return is_kept && kept == read; }
};

// What is stored so, gathered over these axes.
layout::Spec gathered(const layout::Spec& stored, const std::vector<int64_t>& axes);

// ... as operators read it, and as the copy that stays has it.
layout::Spec read_spec(const layout::Spec& stored, const GatherPolicy& policy);
layout::Spec kept_spec(const layout::Spec& stored, const GatherPolicy& policy);

// Where a gradient goes that a backward pass left at `found`: over the axes that are merged it lies as the parameter is
// stored, in the dtype in which it is merged.
layout::Spec merged_gradient(const layout::Spec& found, const layout::Spec& stored, const GatherPolicy& policy);

}  // namespace tessera::dtensor
