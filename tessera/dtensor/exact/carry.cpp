#include "tessera/dtensor/exact/carry.h"

#include <cstring>

#include <ATen/ops/add.h>
#include <ATen/ops/slice_backward.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Placements;
using rules::Carry;

// Null also if the program has written to the value since.
Pending* record_of(const IValue& value) {
  if (!value.isTensor() || !is_dtensor(value.toTensor())) {
    return nullptr;
  }
  Meta& meta = *meta_of(value.toTensor());
  if (!meta.is_pending()) {
    return nullptr;
  }
  const Pending& pending = *meta.rare->pending;
  if (pending.is_settled && !meta.unchanged_since(pending.settled_at)) {
    meta.rare->pending.reset();
  }
  return meta.rare->pending.get();
}

// Null if the value is all there is.
Pending* pending_of(const IValue& value) {
  Pending* pending = record_of(value);
  return pending && !pending->is_spent ? pending : nullptr;
}

// Throws if one of them has all samples of a sum already and the other some of them. Of sums that wait it is seen when
// they are joined.
void verify_apart(const at::Tensor& self, const at::Tensor& other, const char* op) {
  const Pending *a = record_of(self), *b = record_of(other);
  if (!a || !b || !(a->is_spent || b->is_spent)) {
    return;
  }
  for (const Pending::Group& group : a->groups) {
    for (const Pending::Group& more : b->groups) {
      for (const auto& [use, sum] : group.uses) {
        const auto same = more.uses.find(use);
        if (same != more.uses.end() && !sum.shares_calls(same->second)) {
          sum.verify_apart_from(same->second, op);
        }
      }
    }
  }
}

// The tensor as one of the terms of a handle.
Pending as_pending(const at::Tensor& tensor) {
  if (const Pending* pending = pending_of(tensor)) {
    return *pending;
  }
  Pending result;
  Pending::Group& group = result.groups.emplace_back();
  group.spec = meta_of(tensor)->spec;
  LocalScope scope;
  group.constant = meta_of(tensor)->local.clone();
  return result;
}

// Whether the tensor can become a handle: nobody else sees its memory.
bool owns_memory(const at::Tensor& tensor) {
  const Meta& meta = *meta_of(tensor);
  return !meta.root && !meta.derived() && (meta.is_pending() || meta.local.storage().use_count() == 1);
}

// Values of one kind, wherever they lie.
bool are_alike(const Spec& a, const Spec& b) {
  return a->mesh == b->mesh && a->sizes == b->sizes && a->dtype == b->dtype;
}

// What a program makes of a gradient outside of a derivative may be written to, and must then share its memory.
bool is_in_derivative() {
  const auto node = torch::autograd::get_current_node();
  return torch::autograd::get_current_graph_task_id() != -1 && !is_accumulating(node.get());
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
                          std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// Two arguments of links: their tensors are contiguous copies.
bool same_argument(const IValue& a, const IValue& b) {
  if (!a.isTensor() || !b.isTensor()) {
    return a == b;
  }
  const at::Tensor &x = a.toTensor(), &y = b.toTensor();
  if (is_dtensor(x) != is_dtensor(y) || x.defined() != y.defined()) {
    return false;
  }
  if (!x.defined()) {
    return true;
  }
  if (!is_dtensor(x)) {
    return same_bits(x, y);
  }
  const Meta &own = *meta_of(x), &other = *meta_of(y);
  const bool is_of_other_walk = own.local.numel() != other.local.numel();  // where the stage did not run (comm::Walk)
  return own.spec == other.spec && (is_of_other_walk || same_bits(own.local, other.local));
}

bool same_link(const Pending::Link& a, const Pending::Link& b) {
  return a.op == b.op && a.hole == b.hole &&
         std::equal(a.args.begin(), a.args.end(), b.args.begin(), b.args.end(), same_argument);
}

// Whether the group takes the uses of `more`: the same function of sums of which none is in both.
bool continues(const Pending::Group& group, const Pending::Group& more) {
  if (!are_alike(group.spec, more.spec) || group.constant.defined() != more.constant.defined()) {
    return false;
  }
  if (group.late || more.late) {
    return false;  // added in the order in which they came
  }
  if (group.constant.defined() && group.spec != more.spec) {
    return false;
  }
  if (!std::equal(group.chain.begin(), group.chain.end(), more.chain.begin(), more.chain.end(), same_link)) {
    return false;
  }
  const bool has_late = std::any_of(more.late_uses.begin(), more.late_uses.end(),
                                    [&](const auto& entry) { return group.late_uses.count(entry.first) > 0; });
  return !has_late && std::none_of(more.uses.begin(), more.uses.end(), [&](const auto& entry) {
    const auto own = group.uses.find(entry.first);
    return own != group.uses.end() && (!own->second.is_alike(entry.second) || own->second.shares_calls(entry.second));
  });
}

// Where the stage did not run (comm::Walk) there are no elements.
at::Tensor sum_of_constants(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() != b.numel()) {
    return a.numel() > 0 ? a : b;
  }
  const LocalScope scope;
  return at::add(a, b);
}

std::shared_ptr<Pending> joined(const Pending& a, const Pending& b, const char* op) {
  auto result = std::make_shared<Pending>();
  result->groups = a.groups;
  for (const Pending::Group& more : b.groups) {
    const auto same = std::find_if(result->groups.begin(), result->groups.end(),
                                   [&](const Pending::Group& group) { return continues(group, more); });
    if (same == result->groups.end()) {
      result->groups.push_back(more);
      continue;
    }
    if (more.constant.defined()) {
      same->constant = sum_of_constants(same->constant, more.constant);
    }
    if (!same->has_samples() && same->late_uses.empty()) {
      same->chain = more.chain;  // of the walk in which the sums are
    }
    for (const auto& [use, sum] : more.uses) {
      const auto [entry, is_new] = same->uses.try_emplace(use, sum);
      if (!is_new) {
        entry->second.join(sum, op);
      }
    }
    same->late_uses.insert(more.late_uses.begin(), more.late_uses.end());
  }
  return result;
}

// What a walk says of a group of which others said this much.
void add_walk(Pending::Group& told, const Pending::Group& more) {
  const bool is_new = told.constant.defined() ? told.constant.numel() == 0 : !told.has_samples();
  if (is_new) {
    told.spec = more.spec, told.chain = more.chain, told.constant = more.constant;
  }
  for (const auto& [use, sum] : more.uses) {
    if (const auto own = told.uses.find(use); own == told.uses.end() || !own->second.has_samples()) {
      told.uses.insert_or_assign(use, sum);
    }
  }
}

// A copy of what a link reads besides the handle. None if its value belongs to some samples: then the link is no
// function of the step's gradient.
std::optional<IValue> copy_of_argument(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return value;
  }
  const at::Tensor& tensor = value.toTensor();
  LocalScope scope;
  if (!is_dtensor(tensor)) {
    return tensor.clone(at::MemoryFormat::Contiguous);
  }
  const Meta& meta = *meta_of(tensor);
  if (rules::holds_samples(meta.spec->labels) || meta.is_pending() || is_unfinished(meta)) {
    return std::nullopt;
  }
  return wrap(meta.local.clone(at::MemoryFormat::Contiguous), meta.spec);
}

// Whether one of them comes late, and the other from another stage: ranks of both stages meet now.
bool is_late_elsewhere(const at::Tensor& a, const IValue& b) {
  if (!b.isTensor() || !is_dtensor(b.toTensor())) {
    return false;
  }
  const Meta &own = *meta_of(a), &other = *meta_of(b.toTensor());
  return layout::sent_to(own.spec->placements, other.spec->placements) != own.spec->placements &&
         (is_late(own) || is_late(other));
}

// Whether the plan of a call with a handle that ranks of other stages have not merges this operand, for all that read
// it: those ranks do so now.
bool is_merged_elsewhere(const Pending* handle, const at::Tensor& operand, const Spec& output) {
  if (!handle || !has_own_walk_alone(*handle) || !is_dtensor(operand) || meta_of(operand)->is_pending()) {
    return false;
  }
  const Spec& spec = meta_of(operand)->spec;
  return spec->has_partial && spec->placements != output->placements;
}

// A handle like `pending`, not settled, each group's chain one link longer.
at::Tensor carry_link(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, size_t hole,
                      const Pending& pending, Spec output) {
  Pending::Link link{&info, {}, hole};
  for (size_t i = 0; i < args.size(); ++i) {
    const std::optional<IValue> copy = i == hole ? std::optional(IValue()) : copy_of_argument(args[i]);
    if (!copy || is_late_elsewhere(args[hole].toTensor(), args[i])) {
      return {};
    }
    if (args[i].isTensor() && is_merged_elsewhere(&pending, args[i].toTensor(), output)) {
      return {};
    }
    link.args.push_back(*copy);
  }
  auto further = std::make_shared<Pending>(pending);
  further->is_settled = false;
  for (Pending::Group& group : further->groups) {
    group.chain.push_back(link);
  }
  const auto options = meta_of(args[hole].toTensor())->local.options().dtype(output->dtype);
  return make_handle(output, options, state.ctx.coord(output->mesh), further);
}

// Whether both can be the terms of one handle.
bool are_terms(const at::Tensor& a, const at::Tensor& b) {
  if (!is_dtensor(a) || !is_dtensor(b) || !are_alike(meta_of(a)->spec, meta_of(b)->spec)) {
    return false;
  }
  const auto was_unfinished = [](const at::Tensor& tensor) {
    return !pending_of(tensor) && is_unfinished(*meta_of(tensor));
  };
  return !was_unfinished(a) && !was_unfinished(b);
}

// On the stage that `spec` is on, if it is on one.
Placements on_stage_of(const Spec& spec, Placements placements) {
  for (size_t a = 0; a < placements.size(); ++a) {
    placements[a] = spec->placements[a].is_on() ? spec->placements[a] : placements[a];
  }
  return placements;
}

// The sum is on the stage that the plan says, as it is where there are no handles. Ranks of other stages may have none,
// and the plan's layout: then that says how the sum lies in memory, too.
at::Tensor carry_add(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, const Spec& output) {
  const at::Tensor self = args[0].toTensor(), other = args[1].toTensor();
  const bool is_alike = are_terms(self, other) && !is_late_elsewhere(self, other);
  if (!is_alike || !args[2].toScalar().equal(1) || (info.writes && !owns_memory(self))) {
    return {};
  }
  verify_apart(self, other, info.name.c_str());
  if (!pending_of(self) && !pending_of(other)) {
    return {};
  }
  if (is_merged_elsewhere(pending_of(self), other, output) || is_merged_elsewhere(pending_of(other), self, output)) {
    return {};
  }
  Meta& meta = *meta_of(self);
  auto sum = joined(as_pending(self), as_pending(other), info.name.c_str());
  const Placements there = on_stage_of(output, meta.spec->placements);
  const bool is_planned = has_own_walk_alone(*sum) || output->placements == there;
  const Spec spec = info.writes ? meta.spec : is_planned ? output : meta.spec.with(there);
  at::Tensor handle = make_handle(spec, meta.local.options(), state.ctx.coord(spec->mesh), sum);
  if (!info.writes) {
    return handle;
  }
  meta.replace(meta_of(handle)->local, meta.spec);
  meta.make_rare().pending = sum;
  return self;
}

at::Tensor carry_copy(RankState& state, c10::ArrayRef<IValue> args) {
  const Pending* pending = pending_of(args[1]);
  at::Tensor self = args[0].toTensor();
  const at::Tensor source = args[1].toTensor();
  if (!pending || !is_dtensor(self) || self.sizes() != source.sizes() || self.scalar_type() != source.scalar_type()) {
    return {};
  }
  Meta& meta = *meta_of(self);
  auto copy = std::make_shared<Pending>(*pending);
  copy->is_settled = false;
  const Spec spec = meta_of(source)->spec.with(meta.spec->placements);
  const at::Tensor handle = make_handle(spec, meta.local.options(), state.ctx.coord(spec->mesh), copy);
  meta.replace(meta_of(handle)->local, meta.spec);
  meta.make_rare().pending = copy;
  return self;
}

// As the sum of its parts, each among zeros: calls in the place of one, which is noted. Ranks of other stages may have
// no handles, and run that one.
at::Tensor carry_cat(RankState& state, c10::ArrayRef<IValue> args) {
  const std::vector<at::Tensor> parts = args[0].toTensorVector();
  const int64_t dim = c10::maybe_wrap_dim(args[1].toInt(), parts.at(0).dim());
  std::vector<int64_t> sizes = parts[0].sizes().vec();
  sizes[dim] = 0;
  for (const at::Tensor& part : parts) {
    if (!is_dtensor(part) || part.dim() != static_cast<int64_t>(sizes.size()) || is_late_elsewhere(part, parts[0])) {
      return {};
    }
    sizes[dim] += part.size(dim);
  }
  const comm::Program noted = state.ctx.program;
  const auto leave = c10::make_scope_exit([&] { state.ctx.program = noted; });
  at::Tensor sum;
  int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    const at::Tensor among_zeros = at::slice_backward(part, sizes, dim, begin, begin + part.size(dim), 1);
    sum = sum.defined() ? at::add(sum, among_zeros) : among_zeros;
    begin += part.size(dim);
  }
  return sum;
}

bool is_zero(const IValue& value) {
  if (!value.isTensor()) {
    return value.toScalar().equal(0);
  }
  const at::Tensor& tensor = value.toTensor();
  return !is_dtensor(tensor) && tensor.numel() == 1 && tensor.device().is_cpu() && tensor.item().equal(0);
}

// Which argument waits, if the operator is linear in that one.
std::optional<size_t> find_hole(Carry carry, c10::ArrayRef<IValue> args) {
  if (carry == Carry::kInFirst || carry == Carry::kMaskedFill) {
    const bool is_linear = carry == Carry::kInFirst || is_zero(args[2]);
    return is_linear && pending_of(args[0]) ? std::optional<size_t>(0) : std::nullopt;
  }
  const size_t first = carry == Carry::kWhere ? 1 : 0, second = first + 1;
  const bool is_first = pending_of(args[first]);
  if (is_first == (pending_of(args[second]) != nullptr)) {
    return std::nullopt;
  }
  const size_t hole = is_first ? first : second, other = is_first ? second : first;
  return carry == Carry::kWhere && !is_zero(args[other]) ? std::nullopt : std::optional(hole);
}

}  // namespace

at::Tensor carry(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, Spec output) {
  switch (info.row.carry) {
    case Carry::kAdd: return carry_add(state, info, args, output);
    case Carry::kCat: return carry_cat(state, args);
    case Carry::kCopy: return carry_copy(state, args);
    default: break;
  }
  if (info.is_view && !is_in_derivative()) {
    return {};
  }
  const std::optional<size_t> hole = find_hole(info.row.carry, args);
  return hole ? carry_link(state, info, args, *hole, *pending_of(args[*hole]), output) : at::Tensor();
}

at::Tensor join_walks(RankState& state, const at::Tensor& before, const at::Tensor& of_walk, bool is_ours) {
  if (!before.defined()) {
    return of_walk;
  }
  auto all = std::make_shared<Pending>(as_pending(before));
  const Pending here = as_pending(of_walk);
  TESSERA_CHECK(all->groups.size() == here.groups.size(), "[job] the passes over micro-batch ",
                state.ctx.walk.micro_batch, " make a loss of ", all->groups.size(), " and of ", here.groups.size(),
                " sums (rank ", state.ctx.rank, ", stage ", state.ctx.walk.stage,
                "): they run different programs. Look for what changes from call to call.");
  for (size_t i = 0; i < all->groups.size(); ++i) {
    add_walk(all->groups[i], here.groups[i]);
  }
  const LocalScope scope;
  const Meta& meta = *meta_of(is_ours ? of_walk : before);
  return make_handle(meta.spec, meta.local.options(), state.ctx.coord(meta.spec->mesh), std::move(all));
}

}  // namespace tessera::dtensor
