#include "tessera/dtensor/state/parameters.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/dtensor/state/packed_group.h"
#include "tessera/dtensor/state/run_group.h"

namespace tessera::dtensor {

void PlacedParameters::add(const at::Tensor& tensor, ParameterInfo info) {
  TESSERA_CHECK(is_dtensor(tensor), "[parameter] `", info.name, "` is no DTensor: place it first");
  TESSERA_CHECK(!info.name.empty(), "[parameter] a DTensor of ", meta_of(tensor)->spec.str(), " has no name");
  ParameterInfo& added = all_.emplace_back(std::move(info));
  added.told_by = added.input || added.output ? static_cast<const void*>(&added) : added.gather;
  meta_of(tensor)->parameter = &added;
  tensors_.emplace_back(tensor.getIntrusivePtr());
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
  const GatherPolicy& policy = *meta_of(parameters.front())->parameter->gather;
  const bool lie_in_run = std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return RunGroup::may_hold(meta_of(parameter)->spec, policy);
  });
  if (lie_in_run) {
    groups_.push_back(std::make_unique<RunGroup>(context, moves, name, parameters, policy));
  } else {
    groups_.push_back(std::make_unique<PackedGroup>(context, moves, parameters, policy));
  }
  GatherGroup& group = *groups_.back();
  for (ParameterInfo& info : all_) {
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
      return meta_of(parameter)->parameter == &info;
    });
    if (found != parameters.end()) {
      info.group = &group, info.member = static_cast<size_t>(found - parameters.begin());
    }
  }
}

void PlacedParameters::forget_dropped(GatheredGroups& gathered) {
  std::erase_if(tensors_, [](const auto& weak) { return weak.expired(); });
  std::erase_if(groups_, [&](const auto& group) {
    if (!group->let_go_of_dropped()) {
      return false;
    }
    gathered.forget(*group);
    for (ParameterInfo& info : all_) {
      if (info.group == group.get()) {
        info.group = nullptr;
      }
    }
    return true;
  });
}

std::vector<at::Tensor> PlacedParameters::with_gradients(const Meta& gradient) const {
  std::vector<at::Tensor> found;
  bool is_of_one = false;
  for (const auto& weak : tensors_) {
    if (auto alive = weak.lock()) {
      const at::Tensor parameter(std::move(alive));
      if (const at::Tensor& own = parameter.grad(); is_dtensor(own)) {
        is_of_one |= meta_of(own) == &gradient;
        found.push_back(parameter);
      }
    }
  }
  return is_of_one ? found : std::vector<at::Tensor>();
}

const ParameterInfo* PlacedParameters::find(uint64_t site) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& info) { return info.site == site; });
  return found == all_.end() ? nullptr : &*found;
}

}  // namespace tessera::dtensor
