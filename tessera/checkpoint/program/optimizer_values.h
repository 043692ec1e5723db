// What of an optimizer is no tensor, as values of a checkpoint.
#pragma once

#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include "tessera/parallel/optimizer_fields.h"

namespace tessera::checkpoint {

// The kind of an optimizer; of an owned one, of that which it runs. Throws DataError for one of no known kind, with the
// line that makes it known.
const parallel::OptimizerKind& kind_of(torch::optim::Optimizer& optimizer);

// Takes down what is no tensor.
class FieldWriter : public parallel::FieldVisitor {
 public:
  void integer(const char* name, int64_t& value) override { fields[name] = value; }
  void number(const char* name, double& value) override { fields[name] = value; }
  void flag(const char* name, bool& value) override { fields[name] = value; }
  nlohmann::json fields = nlohmann::json::object();
};

// Sets what FieldWriter took down; throws json::exception where a field is missing or of another type.
class FieldReader : public parallel::FieldVisitor {
 public:
  explicit FieldReader(const nlohmann::json& fields) : fields_(fields) {}
  void integer(const char* name, int64_t& value) override { value = fields_.at(name).get<int64_t>(); }
  void number(const char* name, double& value) override { value = fields_.at(name).get<double>(); }
  void flag(const char* name, bool& value) override { value = fields_.at(name).get<bool>(); }

 private:
  const nlohmann::json& fields_;
};

}  // namespace tessera::checkpoint
