// What a plan that was made without adapters says of them: they are cut with the layers that they were put on.
#pragma once

#include <vector>

#include "tessera/plan/adapters.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

// On axes that cut the model, the adapter is cut in the dims that stand for those of the layer's weight which are cut;
// on axes that shard, by rows, and gathered alone; merged and cast as the weight.
ParameterPlan entry_beside(const layout::Mesh& mesh, const AdapterInfo& adapter, const ParameterPlan& weight);

// The plan with an entry for each adapter of the model of which it says nothing, and whose layer it calls by the name
// from before: a plan that was made for the model as it was is one for the wrapped model too.
Plan for_wrapped(Plan plan, const ModuleTree& model);

// A plan for these adapters alone, which were put on a placed model: what the model's plan says of them, or of their
// layers.
Plan for_added(const Plan& plan, const std::vector<AdapterInfo>& added);

}  // namespace tessera::plan
