#include "tessera/dtensor/state/parameters.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::dtensor {

void PlacedParameters::add(const at::Tensor& tensor, ParameterInfo info) {
  TESSERA_CHECK(is_dtensor(tensor), "[parameter] `", info.name, "` is no DTensor: place it first");
  TESSERA_CHECK(!info.name.empty(), "[parameter] a DTensor of ", meta_of(tensor)->spec.str(), " has no name");
  meta_of(tensor)->parameter = &all_.emplace_back(std::move(info));
}

const ParameterInfo* PlacedParameters::find(uint64_t site) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& info) { return info.site == site; });
  return found == all_.end() ? nullptr : &*found;
}

}  // namespace tessera::dtensor
