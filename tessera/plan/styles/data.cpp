// Data parallelism: the batch is cut over every axis of a role that cuts it.
#include "tessera/plan/draft.h"

namespace tessera::plan {

void plan_data(Draft& draft) { draft.plan.batch_axes = layout::batch_axes_of(draft.plan.mesh); }

}  // namespace tessera::plan
