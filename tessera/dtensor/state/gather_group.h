// Parameters that are gathered together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

// Parameters of one dtype that are gathered together, and whose gradients are merged together: where one can be, by one
// collective each. They are on one stage of a pipeline; a rank of another one has the group too, which keeps the books
// of gradients there and takes no part in collectives. One per rank; its own thread uses it.
class GatherGroup {
 public:
  virtual ~GatherGroup() = default;
  GatherGroup(const GatherGroup&) = delete;
  GatherGroup& operator=(const GatherGroup&) = delete;

  // Whether this is the member `index`, as it was then.
  bool has(size_t index, const Meta& parameter) const {
    return members_[index].tensor == &parameter && members_[index].stored == parameter.spec;
  }
  // Whether what is gathered stays until the step ends; or a copy between that and what is stored does.
  bool is_kept() const { return policy_.keeps_all(); }
  bool keeps_some() const { return policy_.is_kept; }
  // Whether member `index` is gathered, and nobody wrote to it since.
  bool is_gathered(size_t index) const;

  // Gathers all members for the operator `op`, where they are. Collective over the axes of the policy.
  virtual void gather(comm::RankContext& context, const char* op) = 0;
  // This rank's part of a gathered member, as operators read it.
  at::Tensor part(size_t index) const { return members_[index].part; }
  void drop();
  // Lets go of members that the program has dropped, of all together; says whether nobody has one any more.
  bool let_go_of_dropped();
  // Drops what stays for the step too.
  virtual void end_step() { drop(); }

  // The gradients of the members that are expected are merged together as well, over the axes that are gathered, into
  // parts as the parameters' are. A gradient is taken where every rank of the axes has a term of it, for all that the
  // rank reads of the parameter; then says whether it was the last one. What waits for other samples (exact/pending.h)
  // is kept as it is.
  void expect_gradient(size_t index, const at::Tensor& parameter);
  // A member whose gradient is expected.
  at::Tensor parameter(size_t index) const { return at::Tensor(members_[index].parameter->lock()); }
  bool may_take(size_t index, const at::Tensor& gradient) const;
  bool take(size_t index, const at::Tensor& gradient);
  bool has_taken() const;
  // Of every member, on the other axes as they were taken; undefined where none was. Collective over the axes.
  std::vector<at::Tensor> merge_taken(comm::RankContext& context, Moves& moves, const char* op);
  // ... that wait, of every member; undefined where none was taken. Nothing is merged yet.
  std::vector<at::Tensor> release_waiting();

 protected:
  // `parameters` all have the policy `policy`, which outlives the group, and are On the same places.
  GatherGroup(comm::RankContext& context, const std::vector<at::Tensor>& parameters, const GatherPolicy& policy);

  struct Member {
    const Meta* tensor;  // for comparing
    c10::weak_intrusive_ptr<Meta> meta;
    Spec stored;
    std::vector<int64_t> sizes;  // of what operators read
    at::Tensor part = {};
    Moment made = {};
    bool has_gradient = false;
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> parameter = {};
    Spec taken = {};          // of its gradient, while that is among the terms; else null
    at::Tensor waiting = {};  // its gradient, while that waits for other samples
  };
  // Keeps this rank's terms of a member's gradient: a copy, or the gradient, so that nobody adds to it in place.
  virtual void keep_terms(size_t index, const at::Tensor& gradient) = 0;
  // This rank's parts of the sums of the terms that were kept, which it gives up: of members that have a place in
  // `merged`, from `taken`.
  virtual std::vector<at::Tensor> merge_terms(comm::RankContext& context, Moves& moves, const std::vector<Spec>& taken,
                                              const std::vector<Spec>& merged, const char* op) = 0;
  c10::ScalarType stored_dtype() const { return members_.front().stored->dtype; }
  c10::ScalarType merge_dtype() const { return policy_.merge_dtype.value_or(stored_dtype()); }

  const GatherPolicy& policy_;
  const bool is_here_;  // on this rank's stages
  std::vector<Member> members_;
};

// Which groups are gathered: those that stay for the step, and of the others the newest.
class GatheredGroups {
 public:
  // Member `index` of the group as operators read it. Collective where `group` says so.
  at::Tensor read(comm::RankContext& context, GatherGroup& group, size_t index, const char* op);

  void forget(const GatherGroup& group);
  void end_pass();
  void end_step();

 private:
  GatherGroup* newest_ = nullptr;
  std::vector<GatherGroup*> kept_;  // of which something stays
};

}  // namespace tessera::dtensor
