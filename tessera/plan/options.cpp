#include "tessera/plan/options.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/dtypes.h"

namespace tessera::plan {
namespace {

constexpr const char* kNames[] = {"state", "gradients", "parameters", "secondary"};  // in the order of Sharding

}  // namespace

std::string name_of(Sharding sharding) { return kNames[static_cast<size_t>(sharding)]; }

Sharding parse_sharding(std::string_view text) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), text);
  TESSERA_CHECK_AS(PlanError, found != std::end(kNames), "[plan] sharding \"", text, "\"",
                   base::did_you_mean(std::string(text), {std::begin(kNames), std::end(kNames)}),
                   "; accepted: ", base::join(std::vector<std::string>(std::begin(kNames), std::end(kNames)), ", "));
  return static_cast<Sharding>(found - std::begin(kNames));
}

Precision parse_precision(std::string_view storage, std::string_view compute, std::string_view reduce) {
  return {.storage = parse_dtype(storage, "dtype of storage"),
          .compute = parse_dtype(compute, "dtype of computation"),
          .reduce = parse_dtype(reduce, "dtype of reduction")};
}

}  // namespace tessera::plan
