#include "tessera/watch/step_record.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::watch {
namespace {

using nlohmann::json;

json record_json(const Digest& digest) {
  json sums = json::array();
  for (const double sum : digest.sums) {
    sums.push_back(sum);
  }
  return {{"hash", digest.hash}, {"not_finite", digest.not_finite}, {"sums", std::move(sums)}};
}

Digest parse_digest(const json& given) {
  Digest digest{given.at("hash"), given.at("not_finite"), {}};
  for (size_t i = 0; i < Digest::kSums; ++i) {
    const auto& sum = given.at("sums").at(i);
    digest.sums[i] = sum.is_number() ? sum.get<double>() : std::nan("");
  }
  return digest;
}

json record_json(const RecordedValue& value) {
  return {{"key", value.key},
          {"sizes", value.sizes},
          {"dtype", value.dtype},
          {"layout", value.layout},
          {"digest", record_json(value.digest)}};
}

RecordedValue parse_value(const json& given) {
  return {given.at("key"), given.at("sizes"), given.at("dtype"), given.at("layout"), parse_digest(given.at("digest"))};
}

json record_json(const RecordedOperator& value) {
  json all = record_json(static_cast<const RecordedValue&>(value));
  all.update({{"op", value.op},
              {"phase", value.phase},
              {"site", value.site},
              {"place", value.place},
              {"number", value.number},
              {"inside", value.is_inside}});
  return all;
}

RecordedOperator parse_operator(const json& given) {
  return {parse_value(given), given.at("op"),     given.at("phase"), given.at("site"),
          given.at("place"),  given.at("number"), given.at("inside")};
}

template <typename Values>
json list_of(const Values& values) {
  json all = json::array();
  for (const auto& value : values) {
    all.push_back(record_json(value));
  }
  return all;
}

template <typename Values>
void add_each(Values& all, const Values& part, int64_t step) {
  bool is_same = all.size() == part.size();
  for (size_t i = 0; is_same && i < all.size(); ++i) {
    is_same = all[i].key == part[i].key;
    all[i].digest += part[i].digest;
  }
  TESSERA_CHECK_AS(DataError, is_same, "[compare] the ranks of one run recorded other values of step ", step);
}

}  // namespace

std::string RecordedStep::json() const {
  nlohmann::json all = {{"step", step},
                        {"exact", is_exact},
                        {"loss", loss ? static_cast<int64_t>(*loss) : -1},
                        {"operators", list_of(operators)},
                        {"gradients", list_of(gradients)},
                        {"parameters", list_of(parameters)}};
  return all.dump();
}

RecordedStep RecordedStep::parse(const std::string& text) {
  try {
    const auto given = nlohmann::json::parse(text);
    RecordedStep result{.step = given.at("step"),
                        .is_exact = given.at("exact"),
                        .loss = {},
                        .operators = {},
                        .gradients = {},
                        .parameters = {}};
    if (const int64_t loss = given.at("loss"); loss >= 0) {
      result.loss = static_cast<size_t>(loss);
    }
    for (const auto& value : given.at("operators")) {
      result.operators.push_back(parse_operator(value));
    }
    for (const auto& value : given.at("gradients")) {
      result.gradients.push_back(parse_value(value));
    }
    for (const auto& value : given.at("parameters")) {
      result.parameters.push_back(parse_value(value));
    }
    return result;
  } catch (const nlohmann::json::exception& error) {
    TESSERA_THROW(DataError, "[compare] a step that a rank recorded does not read: ", error.what());
  }
}

void RecordedStep::add(const RecordedStep& part) {
  TESSERA_CHECK_AS(DataError, step == part.step, "[compare] the ranks of one run recorded steps ", step, " and ",
                   part.step, " at the same time");
  add_each(operators, part.operators, step);
  add_each(gradients, part.gradients, step);
  add_each(parameters, part.parameters, step);
}

std::string steps_path(const std::string& folder, int64_t rank) {
  return fmt::format("{}/rank_{}.jsonl", folder, rank);
}

std::string value_path(const std::string& folder, int64_t rank) { return fmt::format("{}/value_{}", folder, rank); }

}  // namespace tessera::watch
