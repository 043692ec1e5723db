// What would make a redistribution cheaper, and the line that says so.
#include <algorithm>
#include <optional>

#include "tessera/base/hints.h"
#include "tessera/watch/explain_report.h"

namespace tessera::watch {
namespace {

using layout::Label;
using layout::Placements;
using layout::SpecData;

// Activations [batch, sequence, features], which a plan can ask to lie in parts of the sequence.
bool is_activation(const SpecData& spec) {
  const auto is_sequence = [](const layout::Factor& factor) { return factor.label == Label::kSequence; };
  return spec.ndim() == 3 && !spec.labels.empty() &&
         std::any_of(spec.labels[1].begin(), spec.labels[1].end(), is_sequence);
}

// `to`, with parts of `dim` on the axis where `from` is merged into whole values; nothing if there is no such axis or
// the dim does not give every rank a part.
std::optional<Placements> merged_into_parts(const SpecData& from, const SpecData& to, int64_t dim) {
  if (dim >= to.ndim() || to.is_cut(dim)) {
    return std::nullopt;
  }
  for (int64_t axis : layout::axes_merged_whole(from.placements, to.placements)) {
    if (to.sizes[dim] < from.mesh.axis(axis).size) {
      continue;
    }
    Placements parts = to.placements;
    parts[axis] = layout::Shard(static_cast<int>(dim));
    return parts;
  }
  return std::nullopt;
}

std::string in_plan(const std::string& parameter, const std::string& what) {
  return "plan: \"" + folded_name(parameter) + "\" " + what;
}

std::string in_program(const std::string& argument, const std::string& layout) {
  return base::redistribute_line(argument.empty() || argument == "result" ? "x" : argument, layout);
}

void set(Redistribution& move, Remedy remedy, std::string line) {
  move.remedy = remedy;
  move.line = std::move(line);
}

// Sums over ranks: they must be, but need not be whole on every rank. Gradients follow the layouts of forward.
void advise_merge(const Place& place, const SpecData& from, const SpecData& to, Redistribution& move) {
  if (const auto parts = merged_into_parts(from, to, 1); parts && is_activation(to) && !place.parameter.empty()) {
    return set(move, Remedy::kPlanPart, in_plan(place.parameter, "output " + layout::str(to.mesh, *parts)));
  }
  for (int64_t dim = 0; dim < to.ndim(); ++dim) {
    if (const auto parts = merged_into_parts(from, to, dim)) {
      return set(move, Remedy::kMergePart, in_program(move.argument, layout::str(to.mesh, *parts)));
    }
  }
}

}  // namespace

void advise(const Place& place, const SpecData& from, const SpecData& to, Redistribution& move) {
  const bool is_backward = place.phase == OpPhase::kBackward;
  if (from.has_partial) {
    if (place.phase == OpPhase::kForward) {
      advise_merge(place, from, to, move);
    }
  } else if (!move.parameter.empty()) {
    set(move, Remedy::kStore, in_plan(move.parameter, move.to));
  } else if (is_backward) {
    set(move, Remedy::kKeep, in_program("x", move.is_gradient ? move.from : move.to));
  } else if (move.argument == "result" && !place.parameter.empty()) {
    set(move, Remedy::kKeep, in_plan(place.parameter, "output " + move.from));
  } else {
    set(move, Remedy::kOnce, in_program(move.argument, move.to));
  }
}

}  // namespace tessera::watch
