// Results of operators that libtorch knows no kernel for meta tensors of. Internal to this floor.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace tessera::watch {

// Whether the operator's rule says what sizes its results have.
bool has_shapes_by_rule(const c10::OperatorHandle& op);

// Puts results of those sizes, which have no values, in the place of the arguments. Precondition: has_shapes_by_rule.
void give_shapes_by_rule(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack);

}  // namespace tessera::watch
