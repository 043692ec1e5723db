// How one kind of call sums in `exact` numerics: which leaves a rank adds, and over which axes they are merged.
//
// Plain values; dtensor runs them.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/rules/engine/propagate.h"
#include "tessera/rules/exact/exact.h"
#include "tessera/sums/node_plan.h"
#include "tessera/sums/sample_plan.h"

namespace tessera::rules {

// One of `node` and `sample` is there.
struct ExactSum {
  const ExactRule* rule = nullptr;
  LocalCall local;   // filled in by who runs it
  int64_t leaf = 0;  // elements of a leaf of the summed dim, of a NodePlan
  std::unique_ptr<sums::NodePlan> node;
  std::unique_ptr<sums::SamplePlan> sample;
};

// Decides how `rank`, which is on the mesh of the operands, sums output 0 of the call. Null if it sums nothing. Throws
// where no exact form exists, with what works.
std::unique_ptr<ExactSum> plan_exact_sum(int64_t rank, const sums::Lattice& lattice, const Call& call,
                                         const ExactRule& rule, const FactorMap& map, const Propagation& decided);

}  // namespace tessera::rules
