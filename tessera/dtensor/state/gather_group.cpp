#include "tessera/dtensor/state/gather_group.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

using layout::Coord;
using layout::Range;

// A tensor of its own, with its own count of writes, over some of the elements of `flat`.
at::Tensor part_at(const at::Tensor& flat, int64_t begin, c10::IntArrayRef sizes) {
  return at::empty({0}, flat.options()).set_(flat.storage(), begin, sizes);
}

// Where the part of a rank begins and ends among the elements that operators read.
Range elements_of(const Spec& stored, const Spec& read, const Coord& coord) {
  const auto rows = [&](const Spec& spec) {
    return layout::local_range(spec->mesh, spec->placements, 0, spec->sizes[0], coord);
  };
  const Range own = rows(stored), whole = rows(read);
  const auto sizes = read.local_sizes(coord);
  const int64_t columns = c10::multiply_integers(sizes.begin() + 1, sizes.end());
  return {(own.begin - whole.begin) * columns, (own.end - whole.begin) * columns};
}

}  // namespace

GatherGroup::GatherGroup(comm::RankContext& context, Moves& moves, const std::string& name,
                         const std::vector<at::Tensor>& parameters, const GatherPolicy& policy)
    : is_kept_(policy.keeps_all()), policy_(policy) {
  TESSERA_ASSERT(!parameters.empty() && policy.read.size() == 1 && policy.is_kept == is_kept_);
  const layout::Mesh& mesh = meta_of(parameters.front())->spec->mesh;
  const Coord& coord = context.coord(mesh);
  int64_t own_elements = 0, elements = 0;
  for (const at::Tensor& parameter : parameters) {
    Meta* meta = meta_of(parameter);
    TESSERA_CHECK_AS(
        PlanError, meta->spec->blocks_of(0) == 1, "[parallelize] group \"", name, "\": ", meta->spec.str(),
        " has its rows cut in blocks, so that a rank has several runs of it; accepted: such a parameter in no group");
    auto sizes = gathered(meta->spec, policy.read).local_sizes(coord);
    members_.push_back({.tensor = meta,
                        .meta = c10::weak_intrusive_ptr<Meta>(MetaPtr::reclaim_copy(meta)),
                        .stored = meta->spec,
                        .own_begin = own_elements,
                        .begin = elements,
                        .sizes = std::move(sizes)});
    own_elements += meta->local.numel();
    elements += c10::multiply_integers(members_.back().sizes);
  }
  if (!members_.front().stored->holds(coord)) {
    own_ = at::empty({0}, parameters.front().options());
    return;
  }
  const int64_t axis = policy.read.front();
  layout::Placements cut(static_cast<size_t>(mesh.ndim()));
  cut[static_cast<size_t>(axis)] = layout::RaggedShard({0}, runs_of(name, coord, axis));
  const Spec flat = Spec::contiguous(mesh, cut, {elements}, parameters.front().scalar_type());
  gather_ = moves.find_or_plan(flat, read_spec(flat, policy));
  take_over(context);
}

std::vector<int64_t> GatherGroup::runs_of(const std::string& name, const Coord& own, int64_t axis) const {
  const layout::Mesh& mesh = members_.front().stored->mesh;
  std::vector<int64_t> runs;
  int64_t end = 0;
  Coord coord = own;
  for (coord[axis] = 0; coord[axis] < mesh.axis(axis).size; ++coord[axis]) {
    const int64_t begin = end;
    for (const Member& member : members_) {
      const Range part = elements_of(member.stored, gathered(member.stored, {axis}), coord);
      TESSERA_CHECK_AS(PlanError, part.size() == 0 || member.begin + part.begin == end, "[parallelize] group \"", name,
                       "\": ", member.stored.str(), " does not lie so that coordinate ", coord[axis], " of axis ",
                       mesh.axis(axis).name,
                       " has one run of all parameters of the group, in their order; accepted: "
                       "cuts as generate_plan makes them, or no group");
      end += part.size();
    }
    runs.push_back(end - begin);
  }
  return runs;
}

// The parameters keep what they hold, in the group's memory.
void GatherGroup::take_over(comm::RankContext& context) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  const auto own_size = gather_->from.local_sizes(context.coord(gather_->from->mesh));
  own_ = at::empty(own_size, members_.front().meta.lock()->local.options());
  for (const Member& member : members_) {
    const MetaPtr meta = member.meta.lock();
    const at::Tensor part = part_at(own_, member.own_begin, meta->local.sizes());
    part.copy_(meta->local);
    meta->replace(part, meta->spec);
  }
}

bool GatherGroup::is_gathered(size_t index) const {
  const Member& member = members_[index];
  const MetaPtr meta = member.part.defined() ? member.meta.lock() : MetaPtr();
  return meta && meta->unchanged_since(member.made) && member.part.is_inference() <= c10::InferenceMode::is_enabled();
}

void GatherGroup::gather(comm::RankContext& context, const char* op) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  drop();
  std::vector<MetaPtr> alive;
  for (const Member& member : members_) {
    alive.push_back(member.meta.lock());
    const Meta* meta = alive.back().get();
    if (meta && meta->local.numel() > 0 && !meta->local.is_alias_of(own_)) {  // the program gave it other memory
      part_at(own_, member.own_begin, meta->local.sizes()).copy_(meta->local);
    }
  }
  const at::Tensor all = run_move(context, *gather_, own_, op);
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    member.part = part_at(all, member.begin, member.sizes);
    member.made = alive[i] ? alive[i]->moment() : Moment();
  }
}

void GatherGroup::drop() {
  for (Member& member : members_) {
    member.part.reset();
  }
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
  const bool is_term = meta.spec->placements[static_cast<size_t>(policy_.read.front())] == layout::Partial();
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
    take_terms(member, gradient);
  }
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& each) { return !each.has_gradient || each.taken || each.waiting.defined(); });
}

void GatherGroup::take_terms(Member& member, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  if (!terms_.defined()) {
    const int64_t elements = members_.back().begin + c10::multiply_integers(members_.back().sizes);
    terms_ = at::empty({elements}, own_.options().dtype(merge_dtype()));
  }
  part_at(terms_, member.begin, member.sizes).copy_(meta_of(gradient)->local);
  member.taken = meta_of(gradient)->spec;
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
  std::vector<at::Tensor> merged(members_.size());
  const at::Tensor all = std::exchange(terms_, at::Tensor());
  if (!all.defined()) {
    return merged;
  }
  const GatherPolicy over_axis{.merged = policy_.read};
  std::vector<Spec> specs;
  for (Member& member : members_) {
    if (const Spec taken = std::exchange(member.taken, Spec())) {
      const Spec merged = merged_gradient(taken, member.stored, over_axis);
      specs.push_back(member.stored.with(merged->placements));  // in the parameter's strides, as its part will lie
    } else {
      part_at(all, member.begin, member.sizes).zero_();
      specs.emplace_back();
    }
  }
  const at::Tensor own = gather_ ? merged_terms(context, moves, all, op) : own_;
  const layout::Coord& coord = context.coord(members_.front().stored->mesh);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (specs[i]) {
      merged[i] = wrap(part_at(own, members_[i].own_begin, members_[i].stored.local_sizes(coord)), specs[i]);
    }
  }
  return merged;
}

at::Tensor GatherGroup::merged_terms(comm::RankContext& context, Moves& moves, const at::Tensor& all,
                                     const char* op) const {
  layout::Placements terms = gather_->from->placements;
  terms[static_cast<size_t>(policy_.read.front())] = layout::Partial();
  const Spec to = gather_->from.with_dtype(merge_dtype());
  return run_move(context, *moves.find_or_plan(to.with(terms), to), all, op).to(gather_->from->dtype);
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
  } else if (std::find(kept_.begin(), kept_.end(), &group) == kept_.end()) {
    kept_.push_back(&group);
  }
  return group.part(index);
}

void GatheredGroups::end_pass() {
  if (GatherGroup* group = std::exchange(newest_, nullptr)) {
    group->drop();
  }
}

void GatheredGroups::end_step() {
  for (GatherGroup* group : kept_) {
    group->drop();
  }
  kept_.clear();
}

}  // namespace tessera::dtensor
