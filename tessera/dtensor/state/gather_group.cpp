#include "tessera/dtensor/state/gather_group.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

GatherGroup::GatherGroup(comm::RankContext& context, const std::vector<at::Tensor>& parameters,
                         const GatherPolicy& policy)
    : policy_(policy),
      is_here_(meta_of(parameters.front())->spec->holds(context.coord(meta_of(parameters.front())->spec->mesh))) {
  TESSERA_ASSERT(!policy.read.empty());
  for (const at::Tensor& parameter : parameters) {
    Meta* meta = meta_of(parameter);
    members_.push_back({.tensor = meta,
                        .meta = c10::weak_intrusive_ptr<Meta>(MetaPtr::reclaim_copy(meta)),
                        .stored = meta->spec,
                        .sizes = gathered(meta->spec, policy.read).local_sizes(context.coord(meta->spec->mesh))});
  }
}

bool GatherGroup::is_gathered(size_t index) const {
  const Member& member = members_[index];
  const MetaPtr meta = member.part.defined() ? member.meta.lock() : MetaPtr();
  return meta && meta->unchanged_since(member.made) && member.part.is_inference() <= c10::InferenceMode::is_enabled();
}

void GatherGroup::drop() {
  for (Member& member : members_) {
    member.part.reset();
  }
}

bool GatherGroup::let_go_of_dropped() {
  if (std::any_of(members_.begin(), members_.end(),
                  [](const Member& member) { return member.parameter && !member.parameter->expired(); })) {
    return false;
  }
  for (Member& member : members_) {
    member.parameter.reset();
  }
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.meta.expired(); });
}

void GatherGroup::expect_gradient(size_t index, const at::Tensor& parameter) {
  members_[index].has_gradient = true;
  members_[index].parameter.emplace(parameter.getIntrusivePtr());
}

bool GatherGroup::may_take(size_t index, const at::Tensor& gradient) const {
  const Member& member = members_[index];
  const Meta& meta = *meta_of(gradient);
  if (!member.has_gradient || meta.spec->sizes != member.stored->sizes) {
    return false;
  }
  const bool is_term = std::all_of(policy_.read.begin(), policy_.read.end(), [&](int64_t axis) {
    return meta.spec->placements[static_cast<size_t>(axis)] == layout::Partial();
  });
  return meta.is_pending() ||
         (is_term && meta.local.sizes() == member.sizes && meta.spec->dtype == member.stored->dtype);
}

bool GatherGroup::take(size_t index, const at::Tensor& gradient) {
  Member& member = members_[index];
  TESSERA_ASSERT(!member.taken && !member.waiting.defined(), "a gradient of ", member.stored.str(),
                 " is there already");
  if (meta_of(gradient)->is_pending()) {
    member.waiting = gradient;
  } else {
    const at::NoGradGuard no_grad;
    const LocalScope scope;
    keep_terms(index, gradient);
    member.taken = meta_of(gradient)->spec;
  }
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& each) { return !each.has_gradient || each.taken || each.waiting.defined(); });
}

bool GatherGroup::has_taken() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& each) { return each.taken || each.waiting.defined(); });
}

std::vector<at::Tensor> GatherGroup::release_waiting() {
  std::vector<at::Tensor> waiting;
  for (Member& member : members_) {
    waiting.push_back(std::exchange(member.waiting, at::Tensor()));
  }
  return waiting;
}

std::vector<at::Tensor> GatherGroup::merge_taken(comm::RankContext& context, Moves& moves, const char* op) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  const GatherPolicy over_axes{.merged = policy_.read};
  std::vector<Spec> taken, specs;
  for (Member& member : members_) {
    taken.push_back(std::exchange(member.taken, Spec()));
    // ... in the parameter's strides, as its part will lie
    specs.push_back(taken.back()
                        ? member.stored.with(merged_gradient(taken.back(), member.stored, over_axes)->placements)
                        : Spec());
  }
  std::vector<at::Tensor> merged(members_.size());
  if (std::none_of(specs.begin(), specs.end(), [](const Spec& spec) { return static_cast<bool>(spec); })) {
    return merged;
  }
  const std::vector<at::Tensor> parts = merge_terms(context, moves, taken, specs, op);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (specs[i]) {
      merged[i] = wrap(parts[i], specs[i]);
    }
  }
  return merged;
}

at::Tensor GatheredGroups::read(comm::RankContext& context, GatherGroup& group, size_t index, const char* op) {
  if (group.is_gathered(index)) {
    return group.part(index);
  }
  if (!group.is_kept() && newest_ && newest_ != &group) {
    newest_->drop();
  }
  group.gather(context, op);
  if (!group.is_kept()) {
    newest_ = &group;
  }
  if (group.keeps_some() && std::find(kept_.begin(), kept_.end(), &group) == kept_.end()) {
    kept_.push_back(&group);
  }
  return group.part(index);
}

void GatheredGroups::forget(const GatherGroup& group) {
  if (newest_ == &group) {
    newest_ = nullptr;
  }
  std::erase(kept_, &group);
}

void GatheredGroups::end_pass() {
  if (GatherGroup* group = std::exchange(newest_, nullptr)) {
    group->drop();
  }
}

void GatheredGroups::end_step() {
  for (GatherGroup* group : kept_) {
    group->end_step();
  }
  kept_.clear();
}

}  // namespace tessera::dtensor
