#include "tessera/dtensor/plan/plan_cache.h"

#include <algorithm>

namespace tessera::dtensor {

namespace {

constexpr size_t kRemembered = size_t{1} << 14;

}  // namespace

// Copies of the layouts of its calls count nothing from now on.
void PlanCache::keep(CallPlan& plan) {
  plan.is_kept = true;
  for (const layout::Spec& operand : plan.operands) {
    operand.keep();
  }
  for (const CallPlan::OperandMove& action : plan.moves) {
    action.move->to.keep();
  }
  for (const CallPlan::Output& output : plan.outputs) {
    output.spec.keep();
    output.final_spec.keep();
    output.result_spec().keep();
  }
}

CallPlan* PlanCache::find(const Key& key, uint64_t hash) const {
  if (slots_.empty()) {
    return nullptr;
  }
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Entry* entry = slots_[i].get();
    if (!entry) {
      return nullptr;
    }
    if (entry->hash == hash && entry->key == key) {
      return entry->plan.get();
    }
  }
}

CallPlan* PlanCache::insert(const Key& key, uint64_t hash, uint64_t kind, std::shared_ptr<CallPlan> plan) {
  if (on_trial_.size() >= most_on_trial_) {
    drop_old();
  }
  if (2 * (count_ + 1) > slots_.size()) {
    grow();
  }
  plan->id = ++made_;
  calm_ = 0;
  auto entry = std::make_unique<Entry>(Entry{hash, key, kind, std::move(plan)});
  CallPlan* made = entry->plan.get();
  if (!dropped_.empty() && memory_of(kind) == kind) {
    keep(*made);
  } else {
    on_trial_.push_back(entry.get());
  }
  place(std::move(entry));
  ++count_;
  return made;
}

void PlanCache::note_call(CallPlan& plan) {
  if (made_ - plan.id >= kYoung || ++calm_ > kCalm) {
    keep(plan);
  }
}

void PlanCache::grow() {
  std::vector<std::unique_ptr<Entry>> old = std::move(slots_);
  slots_ = std::vector<std::unique_ptr<Entry>>(std::max<size_t>(256, 2 * old.size()));
  for (auto& entry : old) {
    if (entry) {
      place(std::move(entry));
    }
  }
}

void PlanCache::place(std::unique_ptr<Entry> entry) {
  size_t i = entry->hash & (slots_.size() - 1);
  while (slots_[i]) {
    i = (i + 1) & (slots_.size() - 1);
  }
  slots_[i] = std::move(entry);
}

// Those that stand behind it because their places were taken move up.
void PlanCache::remove(const Entry& entry) {
  const size_t mask = slots_.size() - 1;
  size_t hole = entry.hash & mask;
  while (slots_[hole].get() != &entry) {
    hole = (hole + 1) & mask;
  }
  slots_[hole].reset();
  --count_;
  for (size_t i = (hole + 1) & mask; slots_[i]; i = (i + 1) & mask) {
    const size_t home = slots_[i]->hash & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) {
      continue;
    }
    slots_[hole] = std::move(slots_[i]);
    hole = i;
  }
}

void PlanCache::drop_old() {
  if (dropped_.empty()) {
    dropped_.resize(kRemembered);
  }
  const auto young = on_trial_.end() - kYoung;
  std::deque<Entry*> left;
  for (auto entry = on_trial_.begin(); entry != young; ++entry) {
    const CallPlan& plan = *(*entry)->plan;
    if (plan.is_kept) {
      continue;
    }
    if (plan.holders > 0) {
      left.push_back(*entry);
      continue;
    }
    memory_of((*entry)->kind) = (*entry)->kind;
    remove(**entry);
  }
  left.insert(left.end(), young, on_trial_.end());
  on_trial_ = std::move(left);
  most_on_trial_ = on_trial_.size() + kOnTrial - kYoung;
}

uint64_t& PlanCache::memory_of(uint64_t kind) { return dropped_[kind % kRemembered]; }

}  // namespace tessera::dtensor
