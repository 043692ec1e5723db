#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/train/compare/bit_compare.h"

namespace tessera::train {
namespace {

std::string list(const std::vector<int64_t>& numbers) { return "[" + base::join(numbers, ", ") + "]"; }

std::string difference_text(const OperatorDifference& op) {
  return fmt::format(
      "first operator {}, number {} of the step, {}, {}; {} of its {} elements differ, first {}: {} in {} and {} in {}",
      op.op, op.number, op.phase,
      op.site.empty() ? "before any parameter is read" : "the last parameter read is " + op.site, op.different,
      list(op.sizes), list(op.index), op.values[0], op.layouts[0], op.values[1], op.layouts[1]);
}

std::string difference_text(const BitDifference& difference) {
  if (difference.step == 0) {
    return fmt::format("NOT the same bits before the first step ({})", difference.what);
  }
  return fmt::format("NOT the same bits from step {} on ({}); {}", difference.step, difference.what,
                     difference.op ? difference_text(*difference.op) : "no operator that both layouts run differs");
}

nlohmann::ordered_json json_of(const OperatorDifference& op) {
  return {{"op", op.op},          {"number", op.number}, {"phase", op.phase},         {"site", op.site},
          {"sizes", op.sizes},    {"index", op.index},   {"different", op.different}, {"values", op.values},
          {"layouts", op.layouts}};
}

}  // namespace

std::string BitComparison::text() const {
  auto out = fmt::format(
      "{} steps, {}, numerics exact ({}), against {}; bits of loss, gradient norm, {} parameters and moments, "
      "generator\n",
      steps, dtype, lattice, reference, tensors);
  for (const auto& side : sides) {
    out += fmt::format("{}: {}\n", side.text, side.difference ? difference_text(*side.difference) : "same bits");
  }
  return out;
}

std::string BitComparison::json() const {
  nlohmann::ordered_json all = {{"reference", reference}, {"dtype", dtype}, {"numerics", "exact"},
                                {"lattice", lattice},     {"steps", steps}, {"tensors", tensors},
                                {"same_bits", is_same()}};
  all["sides"] = nlohmann::ordered_json::array();
  for (const auto& side : sides) {
    nlohmann::ordered_json one = {{"mesh", side.text}, {"same_bits", !side.difference}};
    if (side.difference) {
      one["first_step"] = side.difference->step;
      one["first_what"] = side.difference->what;
      one["operator"] = side.difference->op ? json_of(*side.difference->op) : nlohmann::ordered_json();
    }
    all["sides"].push_back(std::move(one));
  }
  return all.dump(2);
}

}  // namespace tessera::train
