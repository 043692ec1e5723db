#include "tessera/dtensor/state/run_group.h"

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
  const int64_t last = layout::last_spanned_dim(stored->placements);
  const Range own = stored.first_runs(coord)[last];
  const Spec runs = layout::in_runs(read, last);
  const auto sizes = runs.local_sizes(coord);
  const int64_t begin = runs.first_runs(coord)[last].begin;
  const int64_t columns = c10::multiply_integers(sizes.begin() + last + 1, sizes.end());
  return {(own.begin - begin) * columns, (own.end - begin) * columns};
}

}  // namespace

bool RunGroup::may_hold(const Spec& stored, const GatherPolicy& policy) {
  return policy.read.size() == 1 && policy.keeps_all() == policy.is_kept && stored->blocks_of(0) == 1;
}

RunGroup::RunGroup(comm::RankContext& context, Moves& moves, const std::string& name,
                   const std::vector<at::Tensor>& parameters, const GatherPolicy& policy)
    : GatherGroup(context, parameters, policy) {
  int64_t own_elements = 0, elements = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    places_.push_back({own_elements, elements});
    own_elements += meta_of(parameters[i])->local.numel();
    elements += c10::multiply_integers(members_[i].sizes);
  }
  if (!is_here_) {
    own_ = at::empty({0}, parameters.front().options());
    return;
  }
  const layout::Mesh& mesh = members_.front().stored->mesh;
  const int64_t axis = policy.read.front();
  layout::Placements cut(static_cast<size_t>(mesh.ndim()));
  cut[static_cast<size_t>(axis)] = layout::RaggedShard({0}, runs_of(name, context.coord(mesh), axis));
  const Spec flat = Spec::contiguous(mesh, cut, {elements}, parameters.front().scalar_type());
  gather_ = moves.find_or_plan(flat, read_spec(flat, policy));
  take_over(context);
}

std::vector<int64_t> RunGroup::runs_of(const std::string& name, const Coord& own, int64_t axis) const {
  const layout::Mesh& mesh = members_.front().stored->mesh;
  std::vector<int64_t> runs;
  int64_t end = 0;
  Coord coord = own;
  for (coord[axis] = 0; coord[axis] < mesh.axis(axis).size; ++coord[axis]) {
    const int64_t begin = end;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Spec& stored = members_[i].stored;
      const Range part = elements_of(stored, gathered(stored, {axis}), coord);
      TESSERA_CHECK_AS(PlanError, part.size() == 0 || places_[i].all + part.begin == end, "[parallelize] group \"",
                       name, "\": ", stored.str(), " does not lie so that coordinate ", coord[axis], " of axis ",
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
void RunGroup::take_over(comm::RankContext& context) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  const auto own_size = gather_->from.local_sizes(context.coord(gather_->from->mesh));
  own_ = at::empty(own_size, members_.front().meta.lock()->local.options());
  for (size_t i = 0; i < members_.size(); ++i) {
    const MetaPtr meta = members_[i].meta.lock();
    const at::Tensor part = part_at(own_, places_[i].own, meta->local.sizes());
    part.copy_(meta->local);
    meta->replace(part, meta->spec);
  }
}

void RunGroup::gather(comm::RankContext& context, const char* op) {
  const at::NoGradGuard no_grad;
  const LocalScope scope;
  drop();
  std::vector<MetaPtr> alive;
  for (size_t i = 0; i < members_.size(); ++i) {
    alive.push_back(members_[i].meta.lock());
    const Meta* meta = alive.back().get();
    if (meta && meta->local.numel() > 0 && !meta->local.is_alias_of(own_)) {  // the program gave it other memory
      part_at(own_, places_[i].own, meta->local.sizes()).copy_(meta->local);
    }
  }
  const at::Tensor all = run_move(context, *gather_, own_, op);
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    member.part = part_at(all, places_[i].all, member.sizes);
    member.made = alive[i] ? alive[i]->moment() : Moment();
  }
}

void RunGroup::keep_terms(size_t index, const at::Tensor& gradient) {
  if (!terms_.defined()) {
    const int64_t elements = places_.back().all + c10::multiply_integers(members_.back().sizes);
    terms_ = at::empty({elements}, own_.options().dtype(merge_dtype()));
  }
  part_at(terms_, places_[index].all, members_[index].sizes).copy_(meta_of(gradient)->local);
}

std::vector<at::Tensor> RunGroup::merge_terms(comm::RankContext& context, Moves& moves, const std::vector<Spec>&,
                                              const std::vector<Spec>& merged, const char* op) {
  const at::Tensor all = std::exchange(terms_, at::Tensor());
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!merged[i]) {
      part_at(all, places_[i].all, members_[i].sizes).zero_();
    }
  }
  const at::Tensor own = gather_ ? merged_terms(context, moves, all, op) : own_;
  const Coord& coord = context.coord(members_.front().stored->mesh);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < members_.size(); ++i) {
    parts.push_back(part_at(own, places_[i].own, members_[i].stored.local_sizes(coord)));
  }
  return parts;
}

at::Tensor RunGroup::merged_terms(comm::RankContext& context, Moves& moves, const at::Tensor& all,
                                  const char* op) const {
  layout::Placements terms = gather_->from->placements;
  terms[static_cast<size_t>(policy_.read.front())] = layout::Partial();
  const Spec to = gather_->from.with_dtype(merge_dtype());
  return run_move(context, *moves.find_or_plan(to.with(terms), to), all, op).to(gather_->from->dtype);
}

}  // namespace tessera::dtensor
