// The parameters of the models that a rank has placed.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/state/gather_group.h"

namespace tessera::dtensor {

// What is known of each, at an address that stays.
class PlacedParameters {
 public:
  // The DTensor is this parameter from now on: operators that read it know its name, and what the plan wants there.
  // Throws for a plain tensor, and for a parameter without a name.
  void add(const at::Tensor& tensor, ParameterInfo info);

  // The one object of this policy; null for one that gathers nothing.
  const GatherPolicy* find_or_add(GatherPolicy policy);

  // Placed parameters that are read alike are gathered together from now on: a RunGroup where all may be in one, in
  // this order, else a PackedGroup. Throws PlanError where a RunGroup does.
  void add_group(comm::RankContext& context, Moves& moves, const std::string& name,
                 const std::vector<at::Tensor>& parameters);

  // Lets go of the memory of models that the program has dropped, for a tensor that was plain before it was placed
  // keeps its part as long as somebody knows it by a weak reference; and of their groups, which `gathered` forgets.
  void forget_dropped(GatheredGroups& gathered);

  // Those that are alive and have a gradient, in the order in which they were placed, if `gradient` is that of one of
  // them; else none.
  std::vector<at::Tensor> with_gradients(const Meta& gradient) const;

  // By ParameterInfo::site; null if there is none.
  const ParameterInfo* find(uint64_t site) const;

 private:
  std::deque<ParameterInfo> all_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> tensors_;  // of these
  std::deque<GatherPolicy> policies_;
  std::vector<std::unique_ptr<GatherGroup>> groups_;
};

}  // namespace tessera::dtensor
