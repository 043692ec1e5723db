#include "tessera/dtensor/exact/pending.h"

#include <algorithm>
#include <deque>
#include <limits>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/dtensor/view/view_part.h"
#include "tessera/kernels/base/threads.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

at::Tensor not_a_number(at::TensorOptions options, c10::IntArrayRef sizes) {
  static thread_local at::Tensor last;
  if (!last.defined() || last.dtype() != options.dtype() || last.device() != options.device()) {
    last = at::full({}, std::numeric_limits<double>::quiet_NaN(), options);
  }
  return view_part(last, sizes, std::vector<int64_t>(sizes.size(), 0));
}

// Whether it is one that autograd adds a gradient up with.
bool accumulates(const char* op) {
  const OpInfo* info = find_op(op);
  return info && info->writes && (info->row.carry == rules::Carry::kAdd || info->row.carry == rules::Carry::kCopy);
}

// Whether the operator is part of a derivative, not a look at a gradient from a hook.
bool computes_gradient(const RankState& state, const char* op) {
  const auto node = torch::autograd::get_current_node();
  if (!node || state.pass.is_recomputing()) {
    return false;
  }
  return !is_accumulating(node.get()) || accumulates(op);
}

// The first sum that lacks samples, or null.
const SampleSum* find_incomplete(const Pending& pending) {
  for (const Pending::Group& group : pending.groups) {
    for (const auto& [use, sum] : group.uses) {
      if (!sum.is_complete()) {
        return &sum;
      }
    }
  }
  return nullptr;
}

void check_complete(const RankState& state, const Pending& pending, const char* op) {
  const SampleSum* sum = find_incomplete(pending);
  TESSERA_CHECK(!sum, "[", op, "] numerics exact: a derivative reads the gradient of ", sum->samples_seen(),
                " of the step's ", sum->samples_of_step(),
                " samples before the others are added, so its bits would depend on the micro-batches (rank ",
                state.ctx.rank,
                "). Compute with the parameter itself in the model and apply the function once for a step, or use one "
                "micro-batch (accumulate = 1).");
}

// Micro-batches whose gradients of one use went through different functions have no common sum.
void check_one_function(const RankState& state, const Pending& pending, const char* op) {
  for (size_t i = 0; i < pending.groups.size(); ++i) {
    for (size_t k = i + 1; k < pending.groups.size(); ++k) {
      for (const auto& [use, sum] : pending.groups[i].uses) {
        const auto other = pending.groups[k].uses.find(use);
        const bool is_cut = other != pending.groups[k].uses.end() && sum.is_apart_from(other->second);
        TESSERA_CHECK(
            !is_cut, "[", op,
            "] numerics exact: between the loss and a parameter the gradient is multiplied by values that differ from "
            "micro-batch to micro-batch, so the step's gradient is no function of one sum (rank ",
            state.ctx.rank, "). Use one micro-batch (accumulate = 1), or values that are the same for the whole step.");
      }
    }
  }
}

// The dtype that a link casts to; nothing if it casts nothing.
std::optional<c10::ScalarType> cast_of(const Pending::Link& link) {
  const auto arg = link.op->op.schema().argumentIndexWithName("dtype");
  return link.op->row.copies && arg ? link.args[*arg].toOptional<c10::ScalarType>() : std::nullopt;
}

// A value on its way through a chain: in float32 until something computes with it, though the program sees `dtype`.
struct Carried {
  at::Tensor value;
  c10::ScalarType dtype;

  void run(const Pending::Link& link) {
    const auto cast = cast_of(link);
    if (cast && rules::is_narrow(*cast) && value.scalar_type() == at::kFloat) {
      dtype = *cast;
      return;
    }
    const bool moves = link.op->exact && link.op->exact->moves;
    torch::jit::Stack stack = link.args;
    rules::replace(stack[link.hole], moves ? value : value.to(dtype));
    link.op->op.callBoxed(stack);
    value = stack.back().toTensor();
    dtype = cast || !moves ? value.scalar_type() : dtype;
  }
};

// The layout in which a group's sums are merged: wider than what the program sees, unless it is `alone`, for then it is
// rounded before ranks gather it.
Spec summed_spec(const Pending::Group& group, bool alone) {
  const bool is_whole = alone && group.chain.empty() && group.uses.size() == 1;
  return is_whole || group.constant.defined() || group.late
             ? group.spec
             : rules::with_dtype(group.spec, rules::sum_dtype(group.spec->dtype));
}

bool is_late_group(const Pending::Group& group) { return group.late || !group.late_uses.empty(); }

// Sums that were put off join the others. Copies: other handles may have them too.
void make_late_uses(Pending::Group& group, const char* op) {
  for (auto& [use, call] : std::exchange(group.late_uses, {})) {
    const SampleSum& sum = *call->result().sum;
    if (const auto [entry, is_new] = group.uses.try_emplace(use, sum); !is_new) {
      entry->second.join(sum, op);
    }
  }
}

// The uses of a group in their order, then the chain: in the dtype of summed_spec(). Where the sums are another walk's
// there is no part.
at::Tensor value_of(RankState& state, const Pending::Group& group, bool alone, const at::Tensor& like, const char* op) {
  const Spec summed = summed_spec(group, alone);
  at::Tensor total = group.constant;
  if (group.late) {
    total = group.late->result().part;
  } else if (!group.has_samples() && !total.defined()) {
    total = at::empty({0}, like.options().dtype(summed->dtype));
  }
  for (const auto& [use, sum] : group.uses) {
    if (!sum.has_samples()) {
      continue;
    }
    TESSERA_CHECK(!sum.is_apart_from(group.uses.begin()->second), "[", op,
                  "] numerics exact: a parameter is used at one place in some of the step's "
                  "micro-batches and at another in the others, so their gradients are no one sum (rank ",
                  state.ctx.rank,
                  "). A loop by hand does not say "
                  "where a micro-batch begins: run the step as a job (parallelize, accumulate = n).");
    const at::Tensor local = sum.merged(state, summed, op);
    total = total.defined() ? at::add(total, local) : local;
  }
  Carried carried{wrap(total, summed), group.spec->dtype};
  for (const Pending::Link& link : group.chain) {
    carried.run(link);
  }
  return carried.value;
}

}  // namespace

bool Pending::Group::has_samples() const {
  return std::any_of(uses.begin(), uses.end(), [](const auto& entry) { return entry.second.has_samples(); });
}

Continuation::Continuation(RankState& state, const std::vector<at::Tensor>& held) : state_(state) {
  state.exact.begin_continuation(*this);
  for (const at::Tensor& gradient : held) {
    if (!gradient.defined() || !is_dtensor(gradient) || !meta_of(gradient)->is_pending()) {
      continue;
    }
    for (Pending::Group& group : meta_of(gradient)->rare->pending->groups) {
      for (const auto& [use, sum] : group.uses) {
        const auto [entry, is_new] = groups_.emplace(use, &group);
        if (!is_new) {
          entry->second = nullptr;  // two functions of one sum: neither may lose it
        }
      }
    }
  }
}

Continuation::~Continuation() { state_.exact.end_continuation(); }

std::optional<SampleSum> Continuation::take(uint64_t use, const SamplePlan& plan) {
  const auto found = groups_.find(use);
  if (found == groups_.end() || !found->second) {
    return std::nullopt;
  }
  auto& uses = found->second->uses;
  const auto sum = uses.find(use);
  if (sum == uses.end() || !sum->second.continues(plan)) {
    return std::nullopt;
  }
  auto taken = uses.extract(sum);
  return std::move(taken.mapped());
}

at::Tensor make_handle(Spec spec, at::TensorOptions options, const layout::Coord& coord,
                       std::shared_ptr<Pending> pending) {
  LocalScope scope;
  auto meta = c10::make_intrusive<Meta>();
  meta->local = not_a_number(options.dtype(spec->dtype), spec.local_sizes(coord));
  meta->spec = spec;
  meta->make_rare().pending = std::move(pending);
  return wrap(std::move(meta));
}

void settle(RankState& state, Meta& meta, const char* op) {
  if (!meta.rare || !meta.rare->pending || meta.rare->pending->is_settled) {
    return;
  }
  const std::shared_ptr<Pending> pending = meta.rare->pending;
  // What was put off was noted in its pass.
  const auto noted = has_own_walk_alone(*pending) ? std::optional(state.ctx.program) : std::nullopt;
  const auto leave = c10::make_scope_exit([&] {
    if (noted) {
      state.ctx.program = *noted;
    }
  });
  for (Pending::Group& group : pending->groups) {
    make_late_uses(group, op);
  }
  if (computes_gradient(state, op)) {
    check_complete(state, *pending, op);
  }
  check_one_function(state, *pending, op);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  const kernels::AllThreads threads;  // sums of two tensors, and copies
  at::Tensor value;
  for (const Pending::Group& group : pending->groups) {
    const at::Tensor part = value_of(state, group, pending->groups.size() == 1, meta.local, op);
    value = value.defined() ? at::add(value, part) : part;
  }
  Meta* found = meta_of(value);
  const Spec to = meta.spec;
  at::Tensor local;
  {
    LocalScope scope;
    local = found->local.to(to->dtype);
    if (const Spec from = rules::with_dtype(found->spec, to->dtype); from != to) {
      local = run_move(state.ctx, *state.engine.moves.find_or_plan(from, to), local, op);
    }
    const bool is_shared =
        found->root || std::any_of(pending->groups.begin(), pending->groups.end(), [&](const Pending::Group& group) {
          return group.constant.defined() && local.is_alias_of(group.constant);
        });
    if (!local.is_contiguous() || is_shared) {
      local = local.clone(at::MemoryFormat::Contiguous);
    }
  }
  meta.replace(std::move(local), to);
  pending->is_settled = true;
  pending->settled_at = meta.moment();
  pending->is_spent = !find_incomplete(*pending);
  if (pending->is_spent) {
    for (Pending::Group& group : pending->groups) {
      group.chain.clear();
      group.constant.reset();
      group.late.reset();
      for (auto& [use, sum] : group.uses) {
        sum.forget();
      }
    }
  }
}

void merge_complete(RankState& state, const std::vector<at::Tensor>& handles, const JoinLimits& limits,
                    const char* op) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  const kernels::AllThreads threads;
  std::vector<SampleSum*> sums;
  std::deque<RankMerge> merges;
  std::vector<RankMerge*> together;
  for (const at::Tensor& handle : handles) {
    const Meta* meta = handle.defined() && is_dtensor(handle) ? meta_of(handle) : nullptr;
    if (!meta || !meta->is_pending() || meta->rare->pending->is_settled) {
      continue;
    }
    auto& groups = meta->rare->pending->groups;
    for (Pending::Group& group : groups) {
      for (auto& [use, sum] : group.uses) {
        if (sum.bytes() > limits.part) {
          continue;
        }
        if (auto merge = sum.begin_merge(state, summed_spec(group, groups.size() == 1))) {
          sums.push_back(&sum);
          together.push_back(&merges.emplace_back(*std::move(merge)));
        }
      }
    }
  }
  if (together.empty()) {
    return;
  }
  {
    const LocalScope scope;
    const comm::Caller caller(state.ctx, op);
    merge_over_ranks(state, together, limits, op);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i]->end_merge(std::move(merges[i]));
  }
}

bool is_late(const Meta& meta) {
  if (!meta.is_pending() || meta.rare->pending->is_settled) {
    return false;
  }
  const auto& groups = meta.rare->pending->groups;
  return std::any_of(groups.begin(), groups.end(), is_late_group);
}

bool has_own_walk_alone(const Pending& pending) {
  return std::all_of(pending.groups.begin(), pending.groups.end(),
                     [](const Pending::Group& group) { return group.late || group.constant.defined(); });
}

bool add_late_to(const at::Tensor& sum, Meta& meta) {
  if (!is_late(meta) || meta.rare->pending->groups.size() != 1) {
    return false;
  }
  const Pending::Group& group = meta.rare->pending->groups.front();
  return group.late && group.chain.empty() && group.late.use_count() == 1 && group.late->add_to(sum);
}

void run_late(RankState& state, Meta& meta, const char* op) {
  if (!is_late(meta)) {
    return;
  }
  auto& groups = meta.rare->pending->groups;
  for (Pending::Group& group : groups) {
    make_late_uses(group, op);
  }
  const bool waits = std::any_of(groups.begin(), groups.end(), [](const auto& group) { return !group.uses.empty(); });
  if (!waits) {
    settle(state, meta, op);
    meta.rare->pending.reset();
  }
}

void settle_for_good(RankState& state, Meta& meta, const char* op) {
  check_complete(state, *meta.rare->pending, op);
  settle(state, meta, op);
  meta.rare->pending.reset();
}

bool is_unfinished(const Meta& meta) {
  return meta.rare && (meta.rare->is_unfinished || (meta.rare->pending && find_incomplete(*meta.rare->pending)));
}

void check_unfinished(const RankState& state, const char* op) {
  TESSERA_CHECK(
      !computes_gradient(state, op), "[", op,
      "] numerics exact: a value that was computed from the gradient of some of the step's samples is to become "
      "(part of) a gradient, so its bits would depend on the micro-batches (rank ",
      state.ctx.rank,
      "): a hook that is not linear, such as a clamp. "
      "Do it once for a step, in or before optimizer.step(), or use one micro-batch (accumulate = 1).");
}

bool is_accumulating(const torch::autograd::Node* node) {
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr;
}

}  // namespace tessera::dtensor
