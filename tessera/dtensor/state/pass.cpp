#include "tessera/dtensor/state/pass.h"

#include "tessera/base/error.h"

namespace tessera::dtensor {

StepMeans Pass::set_means(StepMeans means) {
  TESSERA_CHECK(means.parts >= 1 && means.samples >= 0, "[step] ", means.parts, " passes over ", means.samples,
                " samples; accepted: at least one pass, over no or more samples");
  return std::exchange(means_, means);
}

}  // namespace tessera::dtensor
