#include "tessera/plan/dtypes.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::plan {
namespace {

struct Named {
  const char* name;
  c10::ScalarType dtype;
};
constexpr Named kDtypes[] = {
    {"float32", c10::kFloat}, {"float64", c10::kDouble}, {"bfloat16", c10::kBFloat16}, {"float16", c10::kHalf}};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Named& each : kDtypes) {
    all.emplace_back(each.name);
  }
  return all;
}

}  // namespace

std::string name_of(c10::ScalarType dtype) {
  const auto* found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Named& each) { return each.dtype == dtype; });
  TESSERA_CHECK_AS(PlanError, found != std::end(kDtypes), "[plan] parameters of ", dtype,
                   "; accepted: ", accepted_dtypes());
  return found->name;
}

std::optional<c10::ScalarType> try_parse_dtype(std::string_view text) {
  const auto* found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Named& each) { return each.name == text; });
  return found == std::end(kDtypes) ? std::nullopt : std::optional(found->dtype);
}

std::optional<c10::ScalarType> parse_dtype(std::string_view text, const char* what) {
  const auto dtype = try_parse_dtype(text);
  TESSERA_CHECK_AS(PlanError, dtype || text.empty(), "[plan] the ", what, " \"", text, "\"",
                   base::did_you_mean(std::string(text), names()), "; accepted: ", accepted_dtypes());
  return dtype;
}

std::string accepted_dtypes() { return base::join(names(), ", "); }

}  // namespace tessera::plan
