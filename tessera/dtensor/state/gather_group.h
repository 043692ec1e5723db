// Parameters that are gathered together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

// Parameters of one dtype whose parts lie end to end in one piece of memory, cut over one axis so that each rank has a
// run of all of them. One collective gathers them into another piece of memory, of which every gathered parameter is a
// part: nothing is copied on either side.
//
// The parameters' parts are tensors of their own over the group's memory: each counts its own writes. They are on one
// stage of a pipeline; a rank of another one has the group too, which keeps the books of gradients there and takes no
// part in collectives. One per rank; its own thread uses it.
class GatherGroup {
 public:
  // `parameters` in the order in which they lie, all On the same places; all have the policy `policy`, which gathers
  // over one axis and outlives the group. Their parts move to the group's memory. Throws PlanError, which calls the
  // group `name`, if the parts of a rank are no run.
  GatherGroup(comm::RankContext& context, Moves& moves, const std::string& name,
              const std::vector<at::Tensor>& parameters, const GatherPolicy& policy);

  // Whether this is the member `index`, as it was then.
  bool has(size_t index, const Meta& parameter) const {
    return members_[index].tensor == &parameter && members_[index].stored == parameter.spec;
  }
  // Whether what is gathered stays until the step ends.
  bool is_kept() const { return is_kept_; }
  // Whether member `index` is gathered, and nobody wrote to it since.
  bool is_gathered(size_t index) const;

  // Gathers all members for the operator `op`, where they are. Collective over the axis.
  void gather(comm::RankContext& context, const char* op);
  // This rank's part of a gathered member, as operators read it.
  at::Tensor part(size_t index) const { return members_[index].part; }
  void drop();

  // The gradients of the members that are expected are merged together as well, over the axis, into parts as the
  // parameters' are. A gradient is taken where every rank of the axis has a term of it, for all that the rank reads of
  // the parameter; then says whether it was the last one. Terms are copied to where they are merged, so that a group
  // holds them once. What waits for other samples (exact/pending.h) is kept as it is.
  void expect_gradient(size_t index, const at::Tensor& parameter);
  // A member whose gradient is expected.
  at::Tensor parameter(size_t index) const { return at::Tensor(members_[index].parameter->lock()); }
  bool may_take(size_t index, const at::Tensor& gradient) const;
  bool take(size_t index, const at::Tensor& gradient);
  bool has_taken() const;
  // Of every member, on the other axes as they were taken; undefined where none was. Collective over the axis.
  std::vector<at::Tensor> merge_taken(comm::RankContext& context, Moves& moves, const char* op);
  // ... that wait, of every member; undefined where none was taken. Nothing is merged yet.
  std::vector<at::Tensor> release_waiting();

 private:
  struct Member {
    const Meta* tensor;  // for comparing
    c10::weak_intrusive_ptr<Meta> meta;
    Spec stored;
    int64_t own_begin;           // of its part, in the rank's memory, in elements
    int64_t begin;               // of what operators read, in what is gathered
    std::vector<int64_t> sizes;  // of that
    at::Tensor part = {};
    Moment made = {};
    bool has_gradient = false;
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> parameter = {};
    Spec taken = {};          // of its gradient, while that is among the terms; else null
    at::Tensor waiting = {};  // its gradient, while that waits for other samples
  };
  // The elements that coordinate i of the axis holds; throws if some rank's parts are no run.
  std::vector<int64_t> runs_of(const std::string& name, const layout::Coord& own, int64_t axis) const;
  void take_over(comm::RankContext& context);
  void take_terms(Member& member, const at::Tensor& gradient);
  at::Tensor merged_terms(comm::RankContext& context, Moves& moves, const at::Tensor& all, const char* op) const;
  c10::ScalarType merge_dtype() const { return policy_.merge_dtype.value_or(members_.front().stored->dtype); }

  const bool is_kept_;
  const GatherPolicy& policy_;
  std::vector<Member> members_;
  MovePtr gather_;  // null where the members are elsewhere
  at::Tensor own_;
  at::Tensor terms_;  // of gradients that were taken, end to end as what is gathered
};

// Which groups are gathered: those that stay for the step, and of the others the newest.
class GatheredGroups {
 public:
  // Member `index` of the group as operators read it. Collective where `group` says so.
  at::Tensor read(comm::RankContext& context, GatherGroup& group, size_t index, const char* op);

  void end_pass();
  void end_step();

 private:
  GatherGroup* newest_ = nullptr;
  std::vector<GatherGroup*> kept_;
};

}  // namespace tessera::dtensor
