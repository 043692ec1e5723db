// The plans of one rank, and which of them stay.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tessera/dtensor/plan/call_plan.h"

namespace tessera::dtensor {

// Note [Plans that do not come back]. A program whose sizes depend on data (`x[mask]`) makes plans that no later call
// asks for. So a new plan is on trial. It is kept, with its layouts, as soon as its call comes back: once kYoung other
// plans were made meanwhile, or kCalm times while none was. When kOnTrial plans are on trial, all go but the kYoung
// youngest, those that run and those that a backward pass may yet ask for (ForwardPlans). The kind of what went is
// remembered, and what is made again is kept; so a program of however many different calls plans each of them at most
// twice. A program without such calls drops nothing.
class PlanCache {
 public:
  static constexpr size_t kYoung = 64, kOnTrial = 512, kCalm = size_t{1} << 12;

  using Key = c10::SmallVector<uint64_t, 24>;

  // Null if there is none. It may be dropped by any later insert, unless it is kept or held.
  CallPlan* find(const Key& key, uint64_t hash) const;
  // `kind` is equal when a dropped plan is made again, for keys hold what was made anew with it.
  CallPlan* insert(const Key& key, uint64_t hash, uint64_t kind, std::shared_ptr<CallPlan> plan);

  // A plan whose call is known to come back.
  static void keep(CallPlan& plan);

  // Holds a plan on trial while a call of it runs.
  class Call {
   public:
    Call(PlanCache& cache, CallPlan& plan) : plan_(plan) {
      ++plan_.holders;
      cache.note_call(plan_);
    }
    ~Call() { --plan_.holders; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CallPlan& plan_;
  };

  size_t size() const { return count_; }

 private:
  struct Entry {
    uint64_t hash = 0;
    Key key;
    uint64_t kind = 0;
    std::shared_ptr<CallPlan> plan;
  };

  void note_call(CallPlan& plan);
  void grow();
  void place(std::unique_ptr<Entry> entry);
  void remove(const Entry& entry);
  void drop_old();
  uint64_t& memory_of(uint64_t kind);

  std::vector<std::unique_ptr<Entry>> slots_;
  size_t count_ = 0;
  uint64_t made_ = 0;            // plans so far
  size_t calm_ = 0;              // calls of plans on trial since one was made
  std::deque<Entry*> on_trial_;  // oldest first; some are kept meanwhile
  size_t most_on_trial_ = kOnTrial;
  std::vector<uint64_t> dropped_;  // their kinds, each at its own place
};

}  // namespace tessera::dtensor
