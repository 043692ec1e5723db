// Parameters of which a rank has several runs, that are gathered together all the same.
#pragma once

#include <vector>

#include "tessera/dtensor/state/gather_group.h"

namespace tessera::dtensor {

// Parameters that several axes cut, or one in blocks: each lies where it lies, and is copied to what a collective sends
// and from what it receives. Where a copy stays for the step that some of the axes cut (GatherPolicy), one collective
// makes those of all members, and one at each gathering what operators read.
class PackedGroup final : public GatherGroup {
 public:
  PackedGroup(comm::RankContext& context, Moves& moves, const std::vector<at::Tensor>& parameters,
              const GatherPolicy& policy);

  void gather(comm::RankContext& context, const char* op) override;
  void end_step() override;

 private:
  // What a rank has of a member, beside what operators read.
  struct Held {
    at::Tensor own;   // as it was seen last
    at::Tensor kept;  // undefined: there is none
    Moment kept_at;
    at::Tensor gradient;  // this rank's terms of it
  };
  void see_members(std::vector<MetaPtr>& alive);
  bool has_kept(const std::vector<MetaPtr>& alive) const;
  void keep_terms(size_t index, const at::Tensor& gradient) override;
  std::vector<at::Tensor> merge_terms(comm::RankContext& context, Moves& moves, const std::vector<Spec>& taken,
                                      const std::vector<Spec>& merged, const char* op) override;

  std::vector<Held> held_;                        // of the members
  std::vector<MovePtr> keep_moves_, read_moves_;  // of each: to what stays, if anything does; to what operators read
};

}  // namespace tessera::dtensor
