#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, std::vector<c10::IValue>* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kIntercept), stack);
}

}  // namespace tessera::dtensor
