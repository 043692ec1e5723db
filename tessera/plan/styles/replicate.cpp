// What no style cuts is whole on every rank, which is where entries begin; a note says so of what could have been cut.
#include "tessera/plan/draft.h"

namespace tessera::plan {

void plan_replicate(Draft& draft) {
  if (!draft.wide_axis(layout::AxisRole::kTensor)) {
    return;
  }
  for (const auto& name : draft.roles.unknown) {
    draft.note(general(name) + " stays whole: it belongs to no Linear and no Embedding");
  }
}

}  // namespace tessera::plan
