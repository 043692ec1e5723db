#include "tessera/dtensor/dispatch/kept_results.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/SequenceNumber.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/exact/carry.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/rules/families/operators_named.h"

namespace tessera::dtensor {

namespace {

uint64_t last_node() { return at::sequence_number::peek() - 1; }

[[noreturn]] void throw_other(const RankState& state, const std::string& called, const std::string& kept) {
  TESSERA_CHECK(false, "[recompute] the body's second run ", called, ", where its first run ", kept, " (rank ",
                state.ctx.rank, "); accepted: a body that does the same twice");
  throw std::logic_error("unreachable");
}

}  // namespace

OperatorSet::OperatorSet(const std::vector<std::string>& names) : names_(names), ids_(count_ops()) {
  for (const std::string& name : names) {
    for (const std::string& op : rules::operators_named(name)) {
      if (const OpInfo* info = find_op(op)) {
        ids_[static_cast<size_t>(info->id)] = true;
      }
    }
  }
}

const OperatorSet& OperatorSet::of(const std::vector<std::string>& names) {
  static std::mutex mutex;
  static auto& made = *new std::map<std::vector<std::string>, std::unique_ptr<OperatorSet>>;
  const std::scoped_lock lock(mutex);
  auto& set = made[names];
  if (!set) {
    set = std::make_unique<OperatorSet>(names);
  }
  return *set;
}

bool KeptResults::Result::is_written() const {
  return meta && (meta->memory().writes != writes || version_of(part) != version);
}

KeptResults::Run::Run(RankState& state, KeptResults& results) : state_(state), results_(results) {
  results.is_first_ = true;
  results.around_ = state.bodies.set_keeping(&results);
}

KeptResults::Run::Run(RankState& state, KeptResults& results, bool is_last) : state_(state), results_(results) {
  results.is_first_ = false;
  results.is_last_ = is_last;
  results.at_ = 0;
  results.around_ = state.bodies.set_keeping(&results);
}

KeptResults::Run::~Run() { state_.bodies.set_keeping(results_.around_); }

void KeptResults::begin_write(const Invocation& call) {
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor, int arg, int) {
    if (!call.info.args[arg].written || !is_dtensor(tensor)) {
      return;
    }
    for (KeptResults* body = call.state->bodies.keeping(); body; body = body->around_) {
      if (body->is_first_) {
        body->copy_before_write(meta_of(tensor)->memory());
      }
    }
  });
}

void KeptResults::copy_before_write(const Meta& memory) {
  for (Entry& entry : entries_) {
    for (Result& result : entry.results) {
      if (result.meta && &result.meta->memory() == &memory && !result.is_written()) {
        const LocalScope scope;
        result.part = result.part.clone();
        result.meta.reset();
        result.is_copy = true;
      }
    }
  }
}

void KeptResults::end_first(const RankState& state) {
  for (Entry& entry : entries_) {
    for (Result& result : entry.results) {
      TESSERA_CHECK(
          !result.is_written(), "[recompute] what ", entry.op->name, " gave, ", result.spec.str(),
          ", is kept for the second run, and was written to through a plain tensor or a view of another layout (rank ",
          state.ctx.rank, "); accepted: a body that writes to a copy, or a list of operators to keep without it");
      if (result.meta && !result.meta->local.is_same(result.part)) {
        result.meta.reset();  // merged since: nobody else has the part
      }
    }
  }
  if (entries_.empty() && operators_.warn_once()) {
    TORCH_WARN("[recompute] keep ", base::join(operators_.names(), ", "),
               " has no effect on a body: none of them ran in it, but ",
               base::join(others_, ", ", [](std::ostream& out, const OpInfo* info) { out << info->name; }));
  }
  others_.clear();
}

void KeptResults::end_again(const RankState& state) const {
  if (at_ < entries_.size()) {
    throw_other(state, "ended", "called " + entries_[at_].op->name);
  }
}

void KeptResults::add(const Invocation& call, std::optional<ProgramPoint> after, const ForwardPlans::Slot* forward) {
  others_.clear();
  Entry entry{.op = &call.info, .is_empty = false, .results = {}, .after = std::move(after), .forward = {}};
  for (const c10::IValue& value : call.results()) {
    Result& result = entry.results.emplace_back();
    if (!value.isTensor() || !value.toTensor().defined()) {
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    entry.is_empty |= !is_dtensor(tensor) || meta_of(tensor)->is_pending() || meta_of(tensor)->root;
    if (!entry.is_empty) {
      Meta* meta = meta_of(tensor);
      result = {meta->local,      meta->spec,
                meta->origin,     MetaPtr::reclaim_copy(meta),
                meta->writes,     version_of(meta->local),
                /*is_copy=*/false};
    }
  }
  if (forward) {
    entry.forward = *forward;
  }
  if (entry.is_empty) {
    entry.results.clear();
  }
  entries_.push_back(std::move(entry));
}

KeptResults::Entry& KeptResults::next(const RankState& state, const OpInfo& info) {
  if (at_ == entries_.size()) {
    throw_other(state, "calls " + info.name, "called no more operators whose results are kept");
  }
  Entry& entry = entries_[at_++];
  if (entry.op != &info) {
    throw_other(state, "calls " + info.name, "called " + entry.op->name);
  }
  return entry;
}

void KeptResults::note_other(const OpInfo& info) {
  const bool is_told = info.is_view || info.writes || !entries_.empty() || needs_no_value(info);
  if (!is_told && std::find(others_.begin(), others_.end(), &info) == others_.end()) {
    others_.push_back(&info);
  }
}

KeptCall::KeptCall(Invocation& call, bool runs_as_others)
    : call_(call), runs_as_others_(runs_as_others), bodies_(call.state->bodies.keeping()) {
  for (KeptResults* body = bodies_; body; body = body->around_) {
    const bool has = body->operators_.has(call.info);
    is_listed_ |= has;
    if (!has && body->is_first_) {
      body->note_other(call.info);
    }
  }
  if (is_listed_ && runs_as_others) {
    call.state->bodies.set_keeping(nullptr);
  }
}

KeptCall::~KeptCall() { call_.state->bodies.set_keeping(bodies_); }

bool KeptCall::take() {
  if (!is_listed_) {
    return false;
  }
  bool is_taken = false;
  for (KeptResults* body = bodies_; body; body = body->around_) {
    if (body->is_first_ || !body->operators_.has(call_.info)) {
      continue;
    }
    KeptResults::Entry& entry = body->next(*call_.state, call_.info);
    if (!is_taken && !entry.is_empty) {
      put(entry, body->is_last_);
      is_taken = true;
    }
  }
  if (is_taken) {
    keep();
  }
  return is_taken;
}

void KeptCall::put(KeptResults::Entry& entry, bool is_last) {
  RankState& state = *call_.state;
  torch::jit::drop(call_.stack, call_.info.num_args());
  for (KeptResults::Result& result : entry.results) {
    TESSERA_CHECK(!result.is_written(), "[recompute] what ", entry.op->name, " gave, ", result.spec.str(),
                  ", is kept for the second run, and was written to in place since the first (rank ", state.ctx.rank,
                  "); accepted: a program that writes to a copy, or a list of operators to keep without it");
    const LocalScope scope;
    const at::Tensor part = result.is_copy && !is_last ? result.part.clone() : result.part;  // it is written to again
    call_.stack.emplace_back(part.defined() ? wrap(part, result.spec, result.origin) : at::Tensor());
  }
  if (entry.after) {
    state.go_to(*entry.after);
    if (entry.forward.plan) {
      state.engine.forward_plans.record(last_node(), *entry.forward.plan, entry.forward.use);
    }
  }
  if (is_last) {
    entry.results.clear();
  }
}

void KeptCall::keep() {
  if (!is_listed_) {
    return;
  }
  RankState& state = *call_.state;
  for (KeptResults* body = bodies_; body; body = body->around_) {
    if (!body->is_first_ || !body->operators_.has(call_.info)) {
      continue;
    }
    if (!runs_as_others_) {
      body->add(call_, std::nullopt, nullptr);
      continue;
    }
    const ForwardPlans::Slot* forward = state.engine.forward_plans.peek(last_node());
    if (forward) {
      PlanCache::keep(*forward->plan);  // it comes back: the second run asks for it
    }
    body->add(call_, state.point(), forward);
  }
}

}  // namespace tessera::dtensor
