// One configuration on several layouts in `exact` numerics: whether every bit is the same, and where the first one
// differs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/compare/compare.h"
#include "tessera/watch/op_trace.h"

namespace tessera::train {

// What every operator of the step gave, in program order, with the hashes of whole values. Trains up to the step, on
// ranks that are threads of this process.
std::vector<watch::OpRecord> trace_step(const Side& side, int64_t step);

// The first operator of a step, in program order, whose result differs between two layouts.
struct OperatorDifference {
  std::string op;              // tessera::contract
  std::string phase;           // forward, backward or update
  std::string site;            // the parameter read last, in backward by the forward operator; empty before the first
  int64_t number = 0;          // of the operator in the first layout's step, from 1
  std::vector<int64_t> sizes;  // of its result over the whole step
  int64_t different = 0;       // elements that differ
  std::vector<int64_t> index;  // of the first
  std::array<std::string, 2> values;
  std::array<std::string, 2> layouts;
};

struct BitDifference {
  int64_t step = 0;  // the first, counted from 1; 0: before the first
  std::string what;  // loss, grad_norm, a parameter, `exp_avg of` or `exp_avg_sq of` one, generator
  // Nothing if no operator differs that both layouts run: the values differ before the first step, or the programs do.
  std::optional<OperatorDifference> op;
};

// One layout against the first.
struct BitSide {
  std::string text;
  std::optional<BitDifference> difference;
};

struct BitComparison {
  std::string reference;
  std::string dtype;
  std::string lattice;
  int64_t steps = 0;
  int64_t tensors = 0;  // parameters and moments, compared after every step
  std::vector<BitSide> sides;

  bool is_same() const;
  std::string text() const;  // one line a side
  std::string json() const;
};

// Whether these sides are compared bit by bit: all of them are exact.
bool are_exact(const std::vector<Side>& sides);

// Trains every side for `steps` steps of the configuration's schedule and compares the bits of loss, gradient norm,
// parameters, moments and generator after each with the first side's. Tensors are compared by 64-bit hashes of all
// their elements and places. Where a side differs, both run again up to that step, watched, and once more for the
// elements. At least two sides.
BitComparison compare_bits(const std::vector<Side>& sides, int64_t steps);

}  // namespace tessera::train
