#include "tessera/train/compare/program_compare.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/layout/mesh.h"
#include "tessera/train/run/setup.h"
#include "tessera/watch/call_line.h"

namespace tessera::train {
namespace {

using watch::RecordedOperator;
using watch::RecordedStep;
using watch::RecordedValue;

double tolerance_of(const std::string& dtype, double given) {
  if (given > 0) {
    return given;
  }
  for (const auto type : {at::kDouble, at::kBFloat16, at::kHalf}) {
    if (dtype == c10::toString(type)) {
      return default_tolerance(type);
    }
  }
  return default_tolerance(at::kFloat);
}

double elements_of(const std::vector<int64_t>& sizes) {
  double elements = 1;
  for (const auto size : sizes) {
    elements *= static_cast<double>(size);
  }
  return elements;
}

// The root mean square of all elements of these values.
double mean_size(const std::vector<RecordedValue>& values) {
  double squares = 0, elements = 0;
  for (const auto& value : values) {
    squares += value.digest.size() * value.digest.size();
    elements += elements_of(value.sizes);
  }
  return elements > 0 ? std::sqrt(squares / elements) : 0;
}

// How values of two runs are told apart.
struct Measure {
  bool is_exact = false;
  double tolerance = 0;
  double mean = 0;  // a value's elements count as no smaller than this

  bool differ(const RecordedValue& a, const RecordedValue& b) const {
    if (a.sizes != b.sizes || a.digest.not_finite != b.digest.not_finite) {
      return true;
    }
    if (is_exact) {
      return a.digest.hash != b.digest.hash;
    }
    const double size = std::max(a.digest.size(), mean * std::sqrt(elements_of(a.sizes)));
    return (a.digest - b.digest).size() > tolerance_of(a.dtype, tolerance) * size;
  }
};

Measure measure_of(const ProgramComparison& comparison, const std::vector<RecordedValue>& values) {
  return {comparison.is_exact, comparison.tolerance, mean_size(values)};
}

// Those of `a` that differ from the value of the same key of `b`, or that it lacks.
std::vector<const RecordedValue*> differing(const Measure& measure, const std::vector<RecordedValue>& a,
                                            const std::vector<RecordedValue>& b) {
  std::vector<const RecordedValue*> result;
  for (size_t i = 0; i < a.size(); ++i) {
    if (i >= b.size() || a[i].key != b[i].key || measure.differ(a[i], b[i])) {
      result.push_back(&a[i]);
    }
  }
  return result;
}

struct Pair {
  const RecordedOperator* a = nullptr;
  const RecordedOperator* b = nullptr;
};

// The first operator of `a` that `b` has too, with another value.
Pair first_operator(const ProgramComparison& comparison, const RecordedStep& a, const RecordedStep& b) {
  std::unordered_map<std::string, const RecordedOperator*> by_key;
  for (const auto& value : b.operators) {
    by_key.emplace(value.key, &value);
  }
  const double mean = mean_size(a.gradients);
  for (const auto& value : a.operators) {
    const auto found = by_key.find(value.key);
    const Measure measure{comparison.is_exact, comparison.tolerance, value.phase == "backward" ? mean : 0};
    if (!value.is_inside && found != by_key.end() && found->second->sizes == value.sizes &&
        measure.differ(value, *found->second)) {
      return {&value, found->second};
    }
  }
  return {};
}

std::optional<std::array<double, 2>> losses_of(const Measure& measure, const RecordedStep& a, const RecordedStep& b) {
  if (!a.loss || !b.loss || !measure.differ(a.operators[*a.loss], b.operators[*b.loss])) {
    return std::nullopt;
  }
  return std::array<double, 2>{a.operators[*a.loss].digest.one_element(), b.operators[*b.loss].digest.one_element()};
}

// Nothing if the steps are the same. What needs no other run.
std::optional<ProgramDifference> difference_of(const ProgramComparison& comparison, const RecordedStep& a,
                                               const RecordedStep& b) {
  const Measure own{comparison.is_exact, comparison.tolerance};
  const auto gradients = differing(measure_of(comparison, a.gradients), a.gradients, b.gradients);
  const auto parameters = differing(measure_of(comparison, a.parameters), a.parameters, b.parameters);
  ProgramDifference difference{.step = a.step,
                               .losses = losses_of(own, a, b),
                               .gradients = static_cast<int64_t>(gradients.size()),
                               .parameters = static_cast<int64_t>(parameters.size()),
                               .first = {}};
  if (!difference.losses && gradients.empty() && parameters.empty()) {
    return std::nullopt;
  }
  if (const auto [x, y] = first_operator(comparison, a, b); x) {
    difference.first = {.name = x->op,
                        .key = x->key,
                        .dtype = x->dtype,
                        .phase = x->phase,
                        .site = x->site,
                        .line = watch::call_line(x->place),
                        .number = x->number,
                        .sizes = x->sizes,
                        .index = {},
                        .values = {},
                        .layouts = {x->layout, y->layout}};
  } else if (!gradients.empty() || !parameters.empty()) {
    const auto& value = gradients.empty() ? *parameters.front() : *gradients.front();
    difference.first = {.name = value.key,
                        .key = value.key,
                        .dtype = value.dtype,
                        .phase = {},
                        .site = {},
                        .line = {},
                        .sizes = value.sizes,
                        .index = {},
                        .values = {},
                        .layouts = {value.layout, ""}};
  }
  return difference;
}

bool is_other_element(const ProgramComparison& comparison, const watch::StepValue& a, const watch::StepValue& b,
                      size_t i, double limit) {
  return comparison.is_exact ? a.bits()[i] != b.bits()[i] : !(std::abs(a.sum_of(i) - b.sum_of(i)) <= limit);
}

// The elements of the two values that differ.
void find_element(const ProgramComparison& comparison, const watch::StepValue& a, const watch::StepValue& b,
                  const std::string& dtype, ValueDifference& first) {
  if (a.sizes() != b.sizes() || a.bits().size() != b.bits().size()) {
    return;
  }
  double largest = 0;
  for (size_t i = 0; i < a.bits().size(); ++i) {
    largest = std::max(largest, std::abs(a.sum_of(i)));
  }
  const double limit = tolerance_of(dtype, comparison.tolerance) * largest;
  for (size_t i = 0; i < a.bits().size(); ++i) {
    if (is_other_element(comparison, a, b, i, limit) && first.different++ == 0) {
      first.index = a.index_of(i);
      first.values = {a.text_of(i), b.text_of(i)};
    }
  }
}

// What needs both to run again, up to the step that differs.
void complete(const ProgramComparison& comparison, ProgramOptions options, const ProgramRun& reference,
              const std::string& mesh, ProgramDifference& difference) {
  options.steps = std::max<int64_t>(1, difference.step - reference.steps[1].step + 1);
  const auto& first = difference.first;
  const auto again = fetch_value(options, comparison.reference, difference.step, first ? first->key : "");
  for (size_t i = 0; i < again.run.steps.size() && i < reference.steps.size(); ++i) {
    difference.is_drawn_anew |= difference_of(comparison, reference.steps[i], again.run.steps[i]).has_value();
  }
  if (!difference.is_drawn_anew && difference.step > 0 && first) {
    const auto other = fetch_value(options, mesh, difference.step, first->key);
    find_element(comparison, again.value, other.value, first->dtype, *difference.first);
  }
}

ProgramSide side_of(const ProgramComparison& comparison, const ProgramOptions& options, const ProgramRun& reference,
                    const ProgramRun& run) {
  ProgramSide side{run.mesh, run.failure, run.count(), std::nullopt};
  const auto both = std::min(reference.steps.size(), run.steps.size());
  for (size_t i = 0; i < both && !side.difference; ++i) {
    const auto &a = reference.steps[i], &b = run.steps[i];
    TESSERA_CHECK_AS(ConfigError, a.is_exact == b.is_exact, "[compare] numerics are exact on one of ", reference.mesh,
                     " and ", run.mesh, " and fast on the other; accepted: --numerics exact or fast for both");
    side.difference = difference_of(comparison, a, b);
    if (side.difference) {
      complete(comparison, options, reference, run.mesh, *side.difference);
    }
  }
  if (side.failure.empty() && run.count() != reference.count()) {
    side.failure = c10::str("the run took ", run.count(), " steps, and that on ", reference.mesh, " ",
                            reference.count(), ": a program takes as many on every mesh");
  }
  return side;
}

}  // namespace

bool ProgramComparison::is_same() const {
  return failure.empty() && std::all_of(sides.begin(), sides.end(), [](const ProgramSide& side) {
           return side.failure.empty() && !side.difference;
         });
}

ProgramComparison compare_program(const ProgramOptions& options, const std::vector<std::string>& meshes,
                                  double tolerance) {
  TESSERA_CHECK_AS(ConfigError, meshes.size() >= 2, "[compare] ", meshes.size(),
                   " mesh to compare; accepted: at least two, as in --mesh 1 --mesh dp=2,tp=2");
  TESSERA_CHECK_AS(ConfigError, options.steps >= 1, "[compare] ", options.steps, " steps; accepted: at least 1");
  for (const auto& mesh : meshes) {
    layout::Mesh::parse(mesh);
  }
  ProgramComparison comparison{.program = options.command.back(),
                               .reference = meshes.front(),
                               .failure = {},
                               .tolerance = tolerance,
                               .sides = {}};
  const auto reference = run_program(options, meshes.front());
  comparison.failure = reference.failure;
  comparison.steps = reference.count();
  if (comparison.steps == 0) {
    return comparison;
  }
  const auto& last = reference.steps.back();
  comparison.is_exact = last.is_exact;
  TESSERA_CHECK_AS(ConfigError, !comparison.is_exact || tolerance == 0, "[compare] --tolerance ", tolerance,
                   " with numerics exact, which has none; accepted: leave it out, or --numerics fast");
  comparison.gradients = static_cast<int64_t>(last.gradients.size());
  comparison.parameters = static_cast<int64_t>(last.parameters.size());
  for (size_t i = 1; i < meshes.size(); ++i) {
    comparison.sides.push_back(side_of(comparison, options, reference, run_program(options, meshes[i])));
  }
  return comparison;
}

}  // namespace tessera::train
