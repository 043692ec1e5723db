// Dtypes: in which parameters are stored, in which operators read them, and in which their gradients are merged.
#include "tessera/plan/draft.h"

namespace tessera::plan {

void plan_precision(Draft& draft) {
  for (const NamedTensor& named : draft.parameters()) {
    const Precision precision = draft.wanted_of(named).precision;
    if (precision == Precision() || draft.is_whole(named) || !named.tensor.is_floating_point()) {
      continue;
    }
    ParameterPlan& entry = draft.entry(named.name);
    entry.storage_dtype = precision.storage;
    entry.compute_dtype = precision.compute;
    entry.reduce_dtype = precision.reduce;
    if (precision.compute && !entry.compute) {  // gathered by nobody: it is cast once a step
      entry.kept = entry.storage;
    }
  }
}

}  // namespace tessera::plan
