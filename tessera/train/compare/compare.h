// One configuration on several layouts: how far apart the trainings are, and from which step on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/run/config.h"

namespace tessera::train {

// One layout of a comparison.
struct Side {
  std::string text;
  Config config;
};

// `MESH[;option]...`: the mesh (`dp=2,tp=2`, or `1`) and what else differs: `sp` for sequence parallelism, `regather`
// for not keeping gathered activations, `accumulate=2`, `schedule=1f1b`, or any `section.key=value`. Throws ConfigError
// with the accepted form.
Side parse_side(const Config& base, const std::string& text);

// The sides of these texts. One whose mesh has stages and whose text names no schedule stands there once for each of
// `schedules`, if there are any.
std::vector<Side> parse_sides(const Config& base, const std::vector<std::string>& texts,
                              const std::vector<std::string>& schedules);

// Throws ConfigError unless there are two sides, each of which has so many steps.
void verify_sides(const std::vector<Side>& sides, int64_t steps);

struct CompareOptions {
  int64_t steps = 20;
  double tolerance = 0;  // 0: what rounding explains in the configuration's dtype
};

// The error of one parameter after the last step.
struct ParameterError {
  std::string name;
  double error = 0;
  double limit = 0;
  // max|a - b|, held to learning rate x steps: its gradient is zero in exact arithmetic. Else max|a - b| / max|a|.
  bool is_absolute = false;
};

// One side against the first.
struct SideResult {
  std::string text;
  double loss = 0;       // largest |a - b| / |a| over the steps
  double grad_norm = 0;  // the same
  std::vector<ParameterError> parameters;
  bool is_inside = false;
  // The first step, counted from 1, at which any bit differs, and what did: `loss`, `grad_norm` or a parameter.
  int64_t first_step = 0;  // 0: none
  std::string first_what;

  // The parameter nearest to (or farthest beyond) its limit.
  const ParameterError& worst() const;
};

struct Comparison {
  std::string reference;
  std::string dtype;
  int64_t steps = 0;
  double tolerance = 0;
  // Bits of parameters were compared after every step; else, being many, after the last one only.
  bool every_step = false;
  std::vector<SideResult> sides;

  bool is_inside() const;
  std::string text() const;  // one line a side
  std::string json() const;
};

// Trains every side for `steps` steps of the configuration's schedule and compares each with the first.
// At least two sides.
Comparison compare(const std::vector<Side>& sides, const CompareOptions& options);

}  // namespace tessera::train
