// Data parallelism: the batch is cut over every axis of that role, slowest first.
#include "tessera/plan/draft.h"

namespace tessera::plan {

void plan_data(Draft& draft) { draft.plan.batch_axes = layout::axes_of(draft.plan.mesh, layout::AxisRole::kData); }

}  // namespace tessera::plan
