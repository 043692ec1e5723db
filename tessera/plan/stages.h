// A model's parts in the order in which they run, and how stages of a pipeline share them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/plan/module_tree.h"

namespace tessera::plan {

// What is not divided: a numbered layer (`layers.3`), or what stands between layers (a table, a norm, the head).
struct ModelPart {
  std::string name;                          // dotted
  std::vector<std::string> parameters = {};  // by their first names; a tied one is in the first part that has it
  std::vector<std::string> tied = {};        // of other parts that this one reads, by their first names
  int64_t elements = 0;                      // of `parameters`
  double cost = 0;                           // multiplications for each token; a table's row counts as one of each
  int64_t width = 0;                         // elements that each token leaves it with; 0: not known
  c10::ScalarType dtype = c10::ScalarType::Float;  // of these
};

// In the order of registration, which is taken for that of execution: the numbered modules of the outermost lists, and
// runs of other modules, each by itself.
std::vector<ModelPart> parts_of(const ModuleTree& model);

// The stage of each part, in order: of all ways the one whose most expensive stage costs least, and of these the most
// even. Fewer parts than stages leave the last stages empty.
std::vector<int64_t> balanced_stages(const std::vector<double>& costs, int64_t stages);

}  // namespace tessera::plan
