#include "tessera/dtensor/state/packed_group.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "tessera/dtensor/move/joined_moves.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

PackedGroup::PackedGroup(comm::RankContext& context, Moves& moves, const std::vector<at::Tensor>& parameters,
                         const GatherPolicy& policy)
    : GatherGroup(context, parameters, policy), held_(parameters.size()) {
  for (const Member& member : members_) {
    layout::Placements placements = member.stored->placements;
    std::replace_if(
        placements.begin(), placements.end(), [](const layout::Placement& p) { return p.is_on(); },
        layout::Replicate());
    Spec from = member.stored.with(placements);
    const Spec read = read_spec(from, policy);
    if (keeps_some() && !is_kept()) {
      const Spec kept = kept_spec(from, policy);
      keep_moves_.push_back(moves.find_or_plan(from, kept));
      from = kept;
    }
    read_moves_.push_back(moves.find_or_plan(from, read));
  }
}

void PackedGroup::see_members(std::vector<MetaPtr>& alive) {
  for (size_t i = 0; i < members_.size(); ++i) {
    alive.push_back(members_[i].meta.lock());
    if (alive.back()) {
      held_[i].own = alive.back()->local;
    }
  }
}

bool PackedGroup::has_kept(const std::vector<MetaPtr>& alive) const {
  for (size_t i = 0; i < held_.size(); ++i) {
    const at::Tensor& kept = held_[i].kept;
    if (!kept.defined() || (alive[i] && !alive[i]->unchanged_since(held_[i].kept_at)) ||
        kept.is_inference() > c10::InferenceMode::is_enabled()) {
      return false;
    }
  }
  return true;
}

void PackedGroup::gather(comm::RankContext& context, const char* op) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  drop();
  std::vector<MetaPtr> alive;
  see_members(alive);
  std::vector<at::Tensor> parts;
  for (const Held& held : held_) {
    parts.push_back(held.own);
  }
  if (!keep_moves_.empty()) {
    if (!has_kept(alive)) {
      parts = run_moves(context, keep_moves_, std::move(parts), kGroupTogether, op);
      for (size_t i = 0; i < held_.size(); ++i) {
        held_[i].kept = parts[i], held_[i].kept_at = alive[i] ? alive[i]->moment() : Moment();
      }
    }
    parts.clear();
    for (const Held& held : held_) {
      parts.push_back(held.kept);
    }
  }
  parts = run_moves(context, read_moves_, std::move(parts), kGroupTogether, op);
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].part = parts[i];
    members_[i].made = alive[i] ? alive[i]->moment() : Moment();
  }
}

void PackedGroup::end_step() {
  drop();
  for (Held& held : held_) {
    held.kept.reset();
  }
}

void PackedGroup::keep_terms(size_t index, const at::Tensor& gradient) { held_[index].gradient = gradient; }

std::vector<at::Tensor> PackedGroup::merge_terms(comm::RankContext& context, Moves& moves,
                                                 const std::vector<Spec>& taken, const std::vector<Spec>& merged,
                                                 const char* op) {
  std::vector<at::Tensor> results(members_.size()), terms;
  std::vector<MovePtr> to_merged;
  for (size_t i = 0; i < members_.size(); ++i) {
    const at::Tensor gradient = std::exchange(held_[i].gradient, at::Tensor());
    if (!merged[i]) {
      continue;
    }
    at::Tensor own = meta_of(gradient)->local;
    if (is_here_) {
      to_merged.push_back(moves.find_or_plan(taken[i], merged[i].with_dtype(merge_dtype())));
      terms.push_back(std::move(own));
    } else {
      results[i] = std::move(own);
    }
  }
  std::vector<at::Tensor> sums = run_moves(context, to_merged, std::move(terms), kGroupTogether, op);
  auto next = sums.begin();
  for (size_t i = 0; i < members_.size() && is_here_; ++i) {
    if (merged[i]) {
      results[i] = (next++)->to(stored_dtype());
    }
  }
  return results;
}

}  // namespace tessera::dtensor
