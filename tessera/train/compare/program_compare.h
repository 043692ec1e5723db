// A program of a user's own on several meshes: whether loss, gradients and parameters are the same, and where they
// first differ.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/compare/program_run.h"

namespace tessera::train {

// A value that differs, and its first element that does.
struct ValueDifference {
  std::string name;            // aten::embedding, or `gradient of table.weight`
  std::string key, dtype;      // as ranks record it
  std::string phase, site;     // of an operator: see watch::RecordedOperator
  std::string line;            // that calls it, or the forward operator whose derivative it is; empty: none is known
  int64_t number = 0;          // of the operator in the first mesh's step; 0: it is no operator
  std::vector<int64_t> sizes;  // over the whole step
  int64_t different = 0;       // elements that differ; 0: the runs for the element gave none
  std::vector<int64_t> index;  // of the first
  std::array<std::string, 2> values;
  std::array<std::string, 2> layouts;
};

struct ProgramDifference {
  int64_t step = 0;  // the first; 0: before the first
  std::optional<std::array<double, 2>> losses;
  int64_t gradients = 0, parameters = 0;  // how many differ
  // The first operator of the step whose results differ; of none, the first gradient or parameter.
  std::optional<ValueDifference> first;
  // The first mesh, run again, gave other numbers than before: no layout is to blame.
  bool is_drawn_anew = false;
};

// One mesh against the first.
struct ProgramSide {
  std::string mesh;
  std::string failure;  // of its run; there may be a difference in the steps before
  int64_t steps = 0;    // of its run
  std::optional<ProgramDifference> difference;
};

struct ProgramComparison {
  std::string program;
  std::string reference;  // the first mesh
  std::string failure;    // of its run
  bool is_exact = false;  // compared by bits
  double tolerance = 0;   // else relative to the size of each value; 0: by its dtype
  int64_t steps = 0, gradients = 0, parameters = 0;
  std::vector<ProgramSide> sides;

  bool is_same() const;
  std::string text() const;  // one paragraph a mesh
  std::string json() const;
};

// Runs the program once for each mesh and compares the recorded steps with the first's: in exact numerics by bits, else
// by distances relative to the larger of a value's own size and what it would be if all gradients (or parameters) were
// of one size. Where a mesh differs, the first one runs again, and both once more for the element. Throws ConfigError
// unless there are two meshes.
ProgramComparison compare_program(const ProgramOptions& options, const std::vector<std::string>& meshes,
                                  double tolerance);

}  // namespace tessera::train
