// What the programs of ranks share: every layout of a tensor, parts made by hand, and ranks that are expected to fail.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tests/support/layouts.h"
#include "tests/support/sanitized.h"

namespace tessera::ranks {

using dtensor::distribute;
using dtensor::from_local;
using dtensor::full_tensor;
using dtensor::redistribute;
using dtensor::Spec;
using dtensor::spec_of;
using dtensor::to_local;
using layout::Coord;
using layout::Mesh;
using layout::Placement;
using layout::Placements;
using layout::ReduceOp;
using support::every_layout;
using support::every_layout_of;
using support::ragged_cuts;
using Sizes = std::vector<int64_t>;

// Whether to run everything instead of samples: `make test-full`.
inline bool is_full() { return std::getenv("TESSERA_FULL") != nullptr; }

// What the ranks' error says; empty if they do not fail. Short deadlines, so that a hang is an error soon. One thread
// each where OpenMP is to have no teams (`make sanitize`): oneDNN would wait for what the others of a team do.
inline std::string failure_on(int64_t ranks, const std::function<void(int64_t rank)>& body) {
  try {
    comm::run_ranks(
        ranks, body,
        {.deadline = std::chrono::milliseconds(20000), .intra_op_threads = support::kHasThreadSanitizer ? 1 : 0});
  } catch (const std::exception& error) {
    return base::message_of(error);
  }
  return {};
}

// Runs `body` on every rank of the mesh, which must not fail.
inline void run_on(const Mesh& mesh, const std::function<void(int64_t rank)>& body) {
  EXPECT_EQ(failure_on(mesh.size(), body), "");
}

// One paragraph that contains `words`.
#define EXPECT_SAYS(text, words) EXPECT_TRUE(::tessera::ranks::says((text), (words))) << (text)
inline bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos && text.find('\n') == std::string::npos;
}

// Small integers, so that sums are exact in any order.
inline at::Tensor integers(c10::IntArrayRef sizes, c10::ScalarType dtype = at::kDouble) {
  return (at::arange(c10::multiply_integers(sizes), at::kLong) * 7 % 23 - 9).reshape(sizes).to(dtype);
}

// Values in (-1, 1) that differ from element to element.
inline at::Tensor waves(c10::IntArrayRef sizes, double step = 0.37) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * step + 0.3).sin().reshape(sizes);
}

// R, P and every dim cut.
inline std::vector<Placements> plain_layouts(const Mesh& mesh, int64_t ndim) {
  std::vector<Placement> choices = {layout::Replicate(), layout::Partial()};
  for (int64_t dim = 0; dim < ndim; ++dim) {
    choices.push_back(layout::Shard(dim));
  }
  return every_layout(mesh, ndim, choices);
}

// What rank `index` of `parts` holds of a Partial whose value is `value`; exact for small integers.
inline at::Tensor term_of(const at::Tensor& value, ReduceOp op, int64_t index, int64_t parts) {
  const bool last = index == parts - 1;
  const at::Tensor noise = value.mul(3).add(1).remainder(5);
  switch (op) {
    case ReduceOp::kSum: return last ? value - noise * (parts * (parts - 1) / 2) : noise * (index + 1);
    case ReduceOp::kAvg: return last ? value - noise * (parts * (parts - 1) / 2) : value + noise * (index + 1);
    case ReduceOp::kMax: return last ? value : value - noise;
    case ReduceOp::kMin: return last ? value : value + noise;
    case ReduceOp::kProd: return index == 0 ? value : at::ones_like(value);
  }
  return {};
}

// What the rank at `coord` holds of `value`, by definition.
inline at::Tensor part_at(const at::Tensor& value, const Spec& spec, const Coord& coord) {
  if (!spec->holds(coord)) {
    return at::empty({0}, value.options());
  }
  at::Tensor part = value;
  for (int64_t axis = 0; axis < spec->mesh.ndim(); ++axis) {
    const Placement& placement = spec->placements[axis];
    if (placement.is_partial()) {
      part = term_of(part, placement.op, coord[axis], spec->mesh.axis(axis).size);
    }
  }
  part = part.reshape(spec->run_sizes());
  const auto runs = spec.local_runs(coord);
  for (size_t dim = 0; dim < runs.size(); ++dim) {
    std::vector<at::Tensor> pieces;
    for (const layout::Range& run : runs[dim]) {
      pieces.push_back(part.narrow(static_cast<int64_t>(dim), run.begin, run.size()));
    }
    part = at::cat(pieces, static_cast<int64_t>(dim));
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

// A DTensor of `value` whose Partials have terms of their own on every rank.
inline at::Tensor spread(const at::Tensor& value, const Mesh& mesh, const Placements& placements) {
  const Spec spec = Spec::contiguous(mesh, placements, value.sizes(), value.scalar_type());
  const Coord coord = *mesh.coord_of(comm::RankContext::require().rank);
  return from_local(part_at(value, spec, coord), mesh, placements, value.sizes().vec());
}

// max|a - b| / max|b|; NaNs in the same places are equal.
inline double error_of(const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes()) {
    return 1e300;
  }
  const at::Tensor same = found.eq(expected).logical_or(found.isnan().logical_and(expected.isnan()));
  const at::Tensor difference = (found - expected).abs().masked_fill(same, 0);
  return difference.numel() == 0
             ? 0
             : difference.max().item<double>() / std::max(expected.abs().max().item<double>(), 1e-300);
}

}  // namespace tessera::ranks
