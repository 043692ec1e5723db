// What the layouts of a call's operands become.
#pragma once

#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::rules {

// The decision: where each operand has to be before the local call, and where each output is after it.
struct Propagation {
  std::vector<layout::Spec> operands;
  std::vector<layout::Spec> outputs;
  double bytes = 0;  // estimated cost of the redistributions
};

}  // namespace tessera::rules
