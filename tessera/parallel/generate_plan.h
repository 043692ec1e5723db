// A plan from rules: alternate the split along consecutive products, cut attention by heads, embeddings by vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <torch/nn/module.h>

#include "tessera/sums/lattice.h"
#include "tessera/parallel/module_tree.h"
#include "tessera/parallel/plan.h"

namespace tessera::parallel {

struct PlanOptions {
  // Number of ranks; used when `mesh` is not given. Then all are dp; with a lattice as many as it has leaves of a
  // batch, and tp the rest. The first of the plan's notes says the mesh.
  int64_t devices = 1;
  // `dp=2,tp=2`: each axis has a role by its name (layout/axis_role.h): dp cuts the batch, tp cuts the model.
  std::optional<layout::Mesh> mesh = std::nullopt;
  // Norms, dropouts and residuals work on sequence shards on the tp axis.
  bool sequence_parallel = false;
  // Query heads and key/value heads of attention (0: what the model says; if it says nothing, cuts fall wherever
  // torch.chunk cuts). Cuts fall between heads, and where there are as many key/value heads as ranks, between whole
  // groups; a fused product is taken to have its rows in the order [kv_heads, (queries of the group, key, value),
  // head_dim].
  int64_t heads = 0;
  int64_t kv_heads = 0;
  // Keep gathered activations for backward, or gather them again (only the newest is kept).
  bool keep_gathered = true;
  // For `exact` numerics: cuts fall between the leaves of this lattice. Inside a rank it is that of `set_numerics`, if
  // those are exact.
  std::optional<sums::Lattice> lattice = std::nullopt;
};

// Decides without acting: reads the modules' kinds, names and shapes only. Every Linear among the children of one
// module is column-parallel (its output features cut) except the one that leads back to the residual width, which is
// row-parallel; products fused in blocks (Q, K and V; a gate and what it gates), of which a part is read, are cut block
// by block; embeddings and the head are cut along the vocabulary (tables of positions, named `wpe` or `...pos...`, stay
// whole); everything else is replicated. What does not divide evenly is cut unevenly or kept whole, and said in
// `notes`. Entries that differ in the number of a layer only are one, with `*` for the number.
//
// Throws PlanError if the heads contradict each other, an axis of the mesh has no role, or the lattice is not that of
// the rank.
Plan generate_plan(const ModuleTree& model, const PlanOptions& options);
Plan generate_plan(const torch::nn::Module& model, const PlanOptions& options);

}  // namespace tessera::parallel
