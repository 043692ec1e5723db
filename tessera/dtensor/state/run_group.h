// Parameters that lie end to end, so that they are gathered without a copy.
#pragma once

#include <string>
#include <vector>

#include "tessera/dtensor/state/gather_group.h"

namespace tessera::dtensor {

// Parameters whose parts lie end to end in one piece of memory, cut over one axis so that each rank has a run of all of
// them. One collective gathers them into another piece of memory, of which every gathered parameter is a part: nothing
// is copied on either side. Terms of gradients are copied to where they are merged, so that a group holds them once.
//
// The parameters' parts are tensors of their own over the group's memory: each counts its own writes.
class RunGroup final : public GatherGroup {
 public:
  // Whether parameters of such a policy, stored so, may be one.
  static bool may_hold(const Spec& stored, const GatherPolicy& policy);

  // `parameters` in the order in which they lie. Their parts move to the group's memory. Throws PlanError, which calls
  // the group `name`, if the parts of a rank are no run.
  RunGroup(comm::RankContext& context, Moves& moves, const std::string& name, const std::vector<at::Tensor>& parameters,
           const GatherPolicy& policy);

  void gather(comm::RankContext& context, const char* op) override;

 private:
  struct Place {
    int64_t own = 0;  // where a member's part begins in the rank's memory, in elements
    int64_t all = 0;  // ... and what operators read in what is gathered
  };
  void keep_terms(size_t index, const at::Tensor& gradient) override;
  std::vector<at::Tensor> merge_terms(comm::RankContext& context, Moves& moves, const std::vector<Spec>& taken,
                                      const std::vector<Spec>& merged, const char* op) override;
  // The elements that coordinate i of the axis holds; throws if some rank's parts are no run.
  std::vector<int64_t> runs_of(const std::string& name, const layout::Coord& own, int64_t axis) const;
  void take_over(comm::RankContext& context);
  at::Tensor merged_terms(comm::RankContext& context, Moves& moves, const at::Tensor& all, const char* op) const;

  std::vector<Place> places_;  // of the members
  MovePtr gather_;             // null where the members are elsewhere
  at::Tensor own_;
  at::Tensor terms_;  // of gradients that were taken, end to end as what is gathered
};

}  // namespace tessera::dtensor
