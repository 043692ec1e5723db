#include "tessera/dtensor/state/parameters.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::dtensor {

void PlacedParameters::add(const at::Tensor& tensor, ParameterInfo info) {
  TESSERA_CHECK(is_dtensor(tensor), "[parameter] `", info.name, "` is no DTensor: place it first");
  TESSERA_CHECK(!info.name.empty(), "[parameter] a DTensor of ", meta_of(tensor)->spec.str(), " has no name");
  ParameterInfo& added = all_.emplace_back(std::move(info));
  added.told_by = added.input || added.output ? static_cast<const void*>(&added) : added.gather;
  meta_of(tensor)->parameter = &added;
}

const GatherPolicy* PlacedParameters::find_or_add(GatherPolicy policy) {
  if (!policy.reads_otherwise()) {
    return nullptr;
  }
  const auto found = std::find(policies_.begin(), policies_.end(), policy);
  return found == policies_.end() ? &policies_.emplace_back(std::move(policy)) : &*found;
}

void PlacedParameters::add_group(comm::RankContext& context, Moves& moves, const std::string& name,
                                 const std::vector<at::Tensor>& parameters) {
  GatherGroup& group =
      groups_.emplace_back(context, moves, name, parameters, *meta_of(parameters.front())->parameter->gather);
  for (ParameterInfo& info : all_) {
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
      return meta_of(parameter)->parameter == &info;
    });
    if (found != parameters.end()) {
      info.group = &group, info.member = static_cast<size_t>(found - parameters.begin());
    }
  }
}

const ParameterInfo* PlacedParameters::find(uint64_t site) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& info) { return info.site == site; });
  return found == all_.end() ? nullptr : &*found;
}

}  // namespace tessera::dtensor
