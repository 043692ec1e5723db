// What ranks record of a training step, the same on every layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/watch/step_value.h"

namespace tessera::watch {

// One value: a result of an operator, a gradient, a parameter.
struct RecordedValue {
  std::string key;  // equal on every layout
  std::vector<int64_t> sizes;
  std::string dtype, layout;
  Digest digest;
};

struct RecordedOperator : RecordedValue {
  std::string op;      // aten::add.Tensor
  std::string phase;   // forward, backward or update
  std::string site;    // the parameter read last; in backward, by the forward operator
  std::string place;   // call_place; in backward, of the forward operator
  int64_t number = 0;  // of the operator in the step, from 1
  // Inside of an operator that other layouts may run as a whole.
  bool is_inside = false;
};

struct RecordedStep {
  int64_t step = 0;  // from 1; 0: the parameters before the first
  bool is_exact = false;
  std::optional<size_t> loss = {};  // the operator that gave the last scalar before backward
  std::vector<RecordedOperator> operators = {};
  std::vector<RecordedValue> gradients = {}, parameters = {};

  // One line.
  std::string json() const;
  static RecordedStep parse(const std::string& json);

  // Adds what another rank has of the same step. Throws DataError if it has other values.
  void add(const RecordedStep& part);
};

// Where rank `rank` writes its steps, a line each, and a value that is asked for.
std::string steps_path(const std::string& folder, int64_t rank);
std::string value_path(const std::string& folder, int64_t rank);

}  // namespace tessera::watch
