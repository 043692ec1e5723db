#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/train/compare/program_compare.h"

namespace tessera::train {
namespace {

std::string bracketed(const std::vector<int64_t>& numbers) { return "[" + base::join(numbers, ", ") + "]"; }

std::string place_of(const ValueDifference& first) {
  std::string text = first.phase;
  if (!first.site.empty()) {
    text += fmt::format(", the last parameter read is {}", first.site);
  }
  return text + (first.line.empty()          ? ", no line is known (of a C++ program: compile it with -g)"
                 : first.phase == "backward" ? ", of the forward operator at " + first.line
                                             : ", at " + first.line);
}

std::string described(const ValueDifference& first) {
  std::string text = first.number > 0 ? fmt::format("  first operator: {}, number {} of the step, {}\n", first.name,
                                                    first.number, place_of(first))
                                      : fmt::format("  no operator that both run differs; first: {}\n", first.name);
  if (first.different > 0) {
    text += fmt::format("  first element: {} of {}: {} in {} and {} in {}; {} elements differ\n",
                        bracketed(first.index), bracketed(first.sizes), first.values[0], first.layouts[0],
                        first.values[1], first.layouts[1], first.different);
  }
  return text;
}

std::string described(const ProgramDifference& difference, const ProgramComparison& comparison) {
  std::vector<std::string> parts;
  if (difference.losses) {
    parts.push_back(fmt::format("loss {:.9g} and {:.9g}", (*difference.losses)[0], (*difference.losses)[1]));
  }
  if (difference.gradients > 0) {
    parts.push_back(fmt::format("{} of {} gradients", difference.gradients, comparison.gradients));
  }
  if (difference.parameters > 0) {
    parts.push_back(fmt::format("{} of {} parameters", difference.parameters, comparison.parameters));
  }
  const auto when = difference.step == 0 ? "before the first step" : fmt::format("from step {} on", difference.step);
  auto text = fmt::format("NOT the same {}: {}\n", when, base::join(parts, ", "));
  if (difference.is_drawn_anew) {
    return text + fmt::format(
                      "  {} run twice differs from itself: the program draws numbers without a seed, or reads "
                      "what the runs before it wrote\n",
                      comparison.reference);
  }
  if (difference.step == 0) {
    return text +
           "  the model starts with other values: are they drawn before a seed is set, or do they depend on "
           "the rank?\n";
  }
  text += difference.first ? described(*difference.first) : "";
  return comparison.is_exact ? text
                             : text + "  (numerics fast: rounding differs by itself; --numerics exact has none)\n";
}

nlohmann::ordered_json mesh_json(const ValueDifference& first) {
  return {{"name", first.name},      {"is_operator", first.number > 0},
          {"number", first.number},  {"phase", first.phase},
          {"site", first.site},      {"line", first.line},
          {"sizes", first.sizes},    {"index", first.index},
          {"values", first.values},  {"different", first.different},
          {"layouts", first.layouts}};
}

nlohmann::ordered_json mesh_json(const ProgramSide& side) {
  nlohmann::ordered_json one = {
      {"mesh", side.mesh}, {"same", side.failure.empty() && !side.difference}, {"steps", side.steps}};
  if (!side.failure.empty()) {
    one["failure"] = side.failure;
  }
  if (const auto& difference = side.difference) {
    one["first_step"] = difference->step;
    one["gradients"] = difference->gradients;
    one["parameters"] = difference->parameters;
    one["unseeded"] = difference->is_drawn_anew;
    if (difference->losses) {
      one["losses"] = *difference->losses;
    }
    if (difference->first) {
      one["first"] = mesh_json(*difference->first);
    }
  }
  return one;
}

}  // namespace

std::string ProgramComparison::text() const {
  auto out = fmt::format("{} on {}: ", program, reference);
  if (!failure.empty()) {
    out += failure + "\n";
  }
  if (steps == 0) {
    return out;
  }
  out += fmt::format("{} steps, numerics {}; loss, {} gradients, {} parameters of each\n", steps,
                     is_exact        ? "exact, compared by bits"
                     : tolerance > 0 ? fmt::format("fast, tolerance {:.0e}", tolerance)
                                     : "fast, tolerance by dtype",
                     gradients, parameters);
  for (const auto& side : sides) {
    const auto same = is_exact ? "the same bits\n" : "the same within the tolerance\n";
    out += fmt::format("{}: {}", side.mesh,
                       side.difference        ? described(*side.difference, *this)
                       : side.failure.empty() ? same
                                              : side.failure + "\n");
    if (side.difference && !side.failure.empty()) {
      out += "  " + side.failure + "\n";
    }
  }
  return out;
}

std::string ProgramComparison::json() const {
  nlohmann::ordered_json all = {
      {"program", program}, {"reference", reference}, {"numerics", is_exact ? "exact" : "fast"},
      {"steps", steps},     {"gradients", gradients}, {"parameters", parameters},
      {"same", is_same()}};
  if (!failure.empty()) {
    all["failure"] = failure;
  }
  all["meshes"] = nlohmann::ordered_json::array();
  for (const auto& side : sides) {
    all["meshes"].push_back(mesh_json(side));
  }
  return all.dump(2);
}

}  // namespace tessera::train
