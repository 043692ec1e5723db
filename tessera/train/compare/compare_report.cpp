#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/train/compare/compare.h"

namespace tessera::train {

std::string Comparison::text() const {
  auto out = fmt::format("{} steps, {}, against {}; tolerance {:.0e}{}\n", steps, dtype, reference, tolerance,
                         every_step ? "" : "; parameters compared after the last step only");
  for (const auto& side : sides) {
    const auto& worst = side.worst();
    out += fmt::format(
        "{}: {}  loss {:.1e}  grad_norm {:.1e}  parameters {:.1e} ({}, limit {:.0e})  first difference {}\n", side.text,
        side.is_inside ? "inside" : "OUTSIDE", side.loss, side.grad_norm, worst.error, worst.name, worst.limit,
        side.first_step == 0 ? "none" : fmt::format("in step {} ({})", side.first_step, side.first_what));
  }
  return out;
}

std::string Comparison::json() const {
  nlohmann::ordered_json all;
  all["reference"] = reference;
  all["dtype"] = dtype;
  all["steps"] = steps;
  all["tolerance"] = tolerance;
  all["every_step"] = every_step;
  all["inside"] = is_inside();
  all["sides"] = nlohmann::ordered_json::array();
  for (const auto& side : sides) {
    nlohmann::ordered_json one;
    one["mesh"] = side.text;
    one["inside"] = side.is_inside;
    one["loss"] = side.loss;
    one["grad_norm"] = side.grad_norm;
    one["first_step"] = side.first_step;
    one["first_what"] = side.first_what;
    one["worst_parameter"] = side.worst().name;
    for (const auto& parameter : side.parameters) {
      one["parameters"][parameter.name] = {
          {"error", parameter.error}, {"limit", parameter.limit}, {"absolute", parameter.is_absolute}};
    }
    all["sides"].push_back(std::move(one));
  }
  return all.dump(2);
}

}  // namespace tessera::train
