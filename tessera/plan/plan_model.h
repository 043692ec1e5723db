// A plan from rules: alternate the split along consecutive products, cut attention by heads, embeddings by vocabulary.
#pragma once

#include "tessera/plan/module_tree.h"
#include "tessera/plan/options.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

// Decides without acting: reads the modules' kinds, names and shapes only. Every Linear among the children of one
// module is column-parallel (its output features cut) except the one that leads back to the residual width, which is
// row-parallel; products fused in blocks (Q, K and V; a gate and what it gates), of which a part is read, are cut block
// by block; embeddings and the head are cut along the vocabulary (tables of positions, named `wpe` or `...pos...`, stay
// whole); everything else is replicated. What does not divide evenly is cut unevenly or kept whole, and said in
// `notes`. Entries that differ in the number of a layer only are one, with `*` for the number. What each parallelism
// does to the model stands in a file of styles/.
//
// Throws PlanError if the heads contradict each other, a pattern of modules matches none, no mesh of so many ranks fits
// the lattice, or an axis of the mesh has no role.
Plan plan_model(const ModuleTree& model, const PlanOptions& options);

}  // namespace tessera::plan
