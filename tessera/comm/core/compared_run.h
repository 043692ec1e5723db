// What `tessera compare` asks of a program that it runs, by the program's environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/layout/mesh.h"

namespace tessera::comm {

// One run of a program that is compared with other runs of it.
struct ComparedRun {
  layout::Mesh mesh;             // instead of the one that the program asks for
  std::string folder = {};       // where ranks write what they record
  int64_t steps = 0;             // the program ends after so many
  std::optional<bool> is_exact;  // numerics, instead of the program's; nothing: the program's
  // The value of this record of this step is written element by element too; 0: of none.
  int64_t wanted_step = 0;
  std::string wanted = {};

  // The variables that say so to a child.
  static constexpr const char* kMesh = "TESSERA_COMPARE_MESH";
  static constexpr const char* kFolder = "TESSERA_COMPARE_FOLDER";
  static constexpr const char* kSteps = "TESSERA_COMPARE_STEPS";
  static constexpr const char* kNumerics = "TESSERA_COMPARE_NUMERICS";
  static constexpr const char* kWantedStep = "TESSERA_COMPARE_WANTED_STEP";
  static constexpr const char* kWanted = "TESSERA_COMPARE_WANTED";
};

// The run that this process is; null: it is not compared. Read once.
const ComparedRun* compared_run();

// The mesh that a program gets which asks for `asked`: that one, or of a compared run the axes of `asked` in their
// order, each as large as the run's mesh says, 1 if it lacks it, and after them the other axes of the run's mesh.
layout::Mesh mesh_for(const layout::Mesh& asked);

// The number of ranks that a program gets which asks for `asked`.
int64_t ranks_for(int64_t asked);

}  // namespace tessera::comm
