// What a plan is to be for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/layout/mesh.h"
#include "tessera/sums/lattice.h"

namespace tessera::plan {

// What fsdp axes cut beside the batch, besides what goes before it.
enum class Sharding : uint8_t {
  kState,       // what is kept between steps: parameters and the optimizer's state (ZeRO-1)
  kGradients,   // ... and gradients, from the backward pass that has them on (ZeRO-2)
  kParameters,  // ... and parameters between the operators that read them (ZeRO-3)
  // As kParameters, on a mesh with several such axes; a copy stays until the step ends that only the last of them cuts,
  // whose ranks are near each other (secondary shards; hpZ of ZeRO++)
  kSecondary,
};

// `state`, `gradients`, `parameters`, `secondary`. Of a text that is none of them: throws PlanError.
std::string name_of(Sharding sharding);
Sharding parse_sharding(std::string_view text);

// Of every floating parameter; what is not said is as the model has it.
struct Precision {
  std::optional<c10::ScalarType> storage = std::nullopt;  // between steps, where the optimizer works
  std::optional<c10::ScalarType> compute = std::nullopt;  // inside of operators
  std::optional<c10::ScalarType> reduce = std::nullopt;   // while gradients are merged over ranks
  bool operator==(const Precision&) const = default;
};

// By name (`bfloat16`); empty texts say nothing. Throws PlanError.
Precision parse_precision(std::string_view storage, std::string_view compute, std::string_view reduce);

// Parameters that are gathered together, and what is wanted of them.
struct GroupOptions {
  // Of the dotted names of modules (`layers.*`: each layer is a group): the parameters in them.
  std::string pattern;
  Sharding sharding = Sharding::kParameters;
  Precision precision = {};
};

struct PlanOptions {
  // Number of ranks; used when `mesh` is not given. Then all are dp; with a lattice as many as it has leaves of a
  // batch, and tp the rest. The first of the plan's notes says the mesh.
  int64_t devices = 1;
  // `dp=2,tp=2`: each axis has a role by its name (layout/axis_role.h): dp cuts the batch, fsdp the batch and what is
  // kept of parameters, tp the model, pp the model into stages.
  std::optional<layout::Mesh> mesh = std::nullopt;
  // Norms, dropouts and residuals work on sequence shards on the tp axis.
  bool sequence_parallel = false;
  // On fsdp axes.
  Sharding sharding = Sharding::kParameters;
  Precision precision = {};
  // By which schedule the stages of the pp axis share a step's micro-batches (schedule/families: `1f1b`, `zbv`, ...);
  // empty: one stage after the other. It says how many stages a rank has unless `stages_per_rank` does (0). Without a
  // pp axis of several ranks it says nothing.
  std::string schedule = "";
  int64_t stages_per_rank = 0;
  // Tables of tokens and the head are cut over the stages of the pp axis instead of standing on the first one and the
  // last: 1 or 2, the barriers of a schedule's passes for them (schedule/vocabulary.h). 0: they are not. Without a pp
  // axis of several ranks it says nothing.
  int64_t vocabulary = 0;
  // Modules that run again in backward: patterns (Plan::recompute).
  std::vector<std::string> recompute = {};
  // ... of which results of these operators are kept (Plan::recompute_keep).
  std::vector<std::string> recompute_keep = {};
  // Modules whose saved activations are offloaded: patterns (Plan::offload).
  std::vector<std::string> offload = {};
  // Of those whose module a parameter is in, by any of its names, the innermost says for it what `sharding` and
  // `precision` say for the others, which are gathered by layers and modules.
  std::vector<GroupOptions> groups = {};
  // Patterns of parameters that no fsdp axis cuts, and whose dtype is the model's own.
  std::vector<std::string> whole = {};
  // Query heads and key/value heads of attention (0: what the model says; if it says nothing, cuts fall wherever
  // torch.chunk cuts). Cuts fall between heads, and where there are as many key/value heads as ranks, between whole
  // groups; a fused product is taken to have its rows in the order [kv_heads, (queries of the group, key, value),
  // head_dim].
  int64_t heads = 0;
  int64_t kv_heads = 0;
  // Keep gathered activations for backward, or gather them again (only the newest is kept).
  bool keep_gathered = true;
  // For `exact` numerics: cuts fall between the leaves of this lattice.
  std::optional<sums::Lattice> lattice = std::nullopt;
};

}  // namespace tessera::plan
