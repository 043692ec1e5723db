// What runs where, as data beside the model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::plan {

// One line of a plan: how the parameters whose dotted names match `pattern` are kept, and what the operators that read
// them do to activations. Layouts are in the one notation, `{tp: S(0;64)}`; axes that are not named are R.
struct ParameterPlan {
  // Glob over dotted names: `*` matches within one dotted part, `**` across parts.
  std::string pattern;
  // Between steps, where the optimizer works.
  layout::Placements storage;
  // Layouts that the op reading the parameter is asked for: of its activation operand, and of its result. Empty:
  // whatever the rules choose. (C++ modules have no hooks, so activations hang on parameters.)
  std::optional<layout::Placements> input;
  std::optional<layout::Placements> output;
  // Inside of the operators that read the parameter: on each axis as in storage, or R where they gather it first.
  // Empty: as in storage.
  std::optional<layout::Placements> compute = std::nullopt;
  // Between two such operators of a step: on each axis as in storage, or as in compute, where the gathered copy stays
  // until the step ends. Empty: as in storage, so that each operator gathers again what the last ones left.
  std::optional<layout::Placements> kept = std::nullopt;
  // The gradient, between the passes of a step: on each axis as in storage, merged as soon as a backward pass has it,
  // or P, merged once a step. Empty: P wherever ranks have sums of their own.
  std::optional<layout::Placements> gradient = std::nullopt;
  // Parameters that are gathered together, by one collective: those whose names begin with as many parts as this has,
  // and alike (`layers.*`: a group for each layer). Where one axis is gathered, their parts must lie so that each rank
  // has one run of all of them end to end, in the order of the model (plan/groups.h). Where several axes are, or the
  // rows of one are cut in blocks, they may lie anyhow, and are copied for the collective. Empty: gathered alone.
  std::string group = "";
  // Between steps; empty: as the model has it. A model that was loaded in 16 bits may be stored in float32 so.
  std::optional<at::ScalarType> storage_dtype = std::nullopt;
  // Operators read it in this dtype, and the floating tensors that they read beside it, forward and backward: it is
  // cast before it is gathered, and its gradient is cast to storage_dtype. Empty: as it is stored.
  std::optional<at::ScalarType> compute_dtype = std::nullopt;
  // In which terms of the gradient are added over ranks as soon as a backward pass has them. Empty: in storage_dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  bool operator==(const ParameterPlan&) const = default;
};

// A plan: a value, serialised as JSON with a version, one line per entry so that two plans diff line by line.
struct Plan {
  static constexpr int kVersion = 5;  // 4: without vocabulary; 3: without schedule; 2: without dtypes, recompute; 1:
                                      // without compute, kept, gradient

  layout::Mesh mesh;
  // Axes that cut the batch, slowest first: of the mesh, and of that role (layout/axis_role.h).
  std::vector<std::string> batch_axes;
  // First match wins; a parameter that matches nothing is replicated.
  std::vector<ParameterPlan> parameters;
  // Modules that keep only their inputs for backward, and run again there: patterns over dotted names of modules.
  std::vector<std::string> recompute = {};
  // Operators in them whose results are kept and not computed again (rules/families/operators_named.h).
  std::vector<std::string> recompute_keep = {};
  // Modules of which what autograd saves lies elsewhere than in memory until backward asks: such patterns.
  std::vector<std::string> offload = {};
  // The schedule by which the stages of the pp axis share a step's micro-batches (schedule/families); empty: one stage
  // after the other. A rank has so many of the stages.
  std::string schedule = "";
  int64_t stages_per_rank = 1;
  // Parameters that are cut over the stages (`{pp: S(0)}`) have passes of their own in the schedule, with so many
  // barriers (schedule/vocabulary.h); 0: it has no such passes.
  int64_t vocabulary = 0;
  // Modules that a rank of a schedule walks for every micro-batch where they are of another stage, and never goes past
  // (dtensor/front/pass_over.h), such as those that do not do the same each time: such patterns.
  std::vector<std::string> always_walked = {};
  // How many bytes of gathered activations a rank may keep so that nobody gathers them twice (for Q, K and V; for
  // backward).
  int64_t keep_gathered_bytes = int64_t{1} << 30;
  // What the generator could not divide, and why: for people.
  std::vector<std::string> notes;

  bool operator==(const Plan&) const = default;

  // The axis of the mesh that has the stages of a pipeline; nothing if there is none.
  std::optional<int64_t> pipeline_axis() const;

  // The entry for a parameter, or null. Of a model that adapters were put on, names from before do as well
  // (name_before_wrapping).
  const ParameterPlan* find(std::string_view name) const;

  // Whether the module of this name runs again in backward.
  bool recomputes(std::string_view module) const;
  // ... and whether what autograd saves in it is offloaded.
  bool offloads(std::string_view module) const;
  // ... and whether ranks of other stages walk it for every micro-batch.
  bool always_walks(std::string_view module) const;

  // Whether gradients of some parameters are merged over an axis that cuts the batch in each pass of a step.
  bool merges_in_passes() const;

  // What the group of this parameter is called: `layers.3`; empty if it has none.
  std::string group_of(std::string_view name) const;

  // Throws PlanError if an axis of the mesh has no role, or a batch axis is not one of its axes that cut the batch.
  void verify_axes() const;

  // ... and if an entry matches nothing (or nothing that earlier entries leave), a dim does not exist, a placement is
  // Partial that must not be, or the four layouts of a parameter do not fit each other; `sizes` are the model's
  // parameters with their global shapes.
  void verify(const std::map<std::string, std::vector<int64_t>>& sizes) const;

  std::string json() const;
  // Throws PlanError that names the line and what is accepted; a newer version is refused, and an axis without a role.
  static Plan from_json(std::string_view text);
};

// True if the glob `pattern` matches the dotted `name`.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace tessera::plan
