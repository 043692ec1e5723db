// Results that a recomputed body keeps: what its first run computed, its second run takes.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// The operators that a list of names means (rules/families/operators_named.h). Made once for a list, for the life of
// the process; thread-safe.
class OperatorSet {
 public:
  // Throws PlanError if a name means no operator whose results can be kept.
  static const OperatorSet& of(const std::vector<std::string>& names);

  explicit OperatorSet(const std::vector<std::string>& names);
  bool has(const OpInfo& info) const { return ids_[static_cast<size_t>(info.id)]; }
  const std::vector<std::string>& names() const { return names_; }
  // True the first time.
  bool warn_once() const { return !has_warned_.exchange(true); }

 private:
  std::vector<std::string> names_;
  std::vector<bool> ids_;
  mutable std::atomic<bool> has_warned_ = false;
};

// Of one body, from its first run until its gradient was taken; on the rank's thread and those of its backward passes.
//
// A result is kept as its operator left it: the rank's part and its layout, below autograd, so that it holds nothing of
// the first run's graph. The second run plans the call as ever, builds its node of the graph, and takes the part:
// operands are not moved, gathered or read. What a call drew stays drawn: the program goes on where the first run did.
// An operator that runs as others is kept as one. Where the body writes to a result in place, a copy of what it was is
// kept.
class KeptResults {
 public:
  explicit KeptResults(const OperatorSet& operators) : operators_(operators) {}
  KeptResults(const KeptResults&) = delete;
  KeptResults& operator=(const KeptResults&) = delete;

  // While it lives, the rank's operators are the body's. Bodies nest.
  class Run {
   public:
    // The first run.
    Run(RankState& state, KeptResults& results);
    // A later one, which takes; the last one takes them away as well.
    Run(RankState& state, KeptResults& results, bool is_last);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    RankState& state_;
    KeptResults& results_;
  };

  // Before the body's call that writes to these.
  static void begin_write(const Invocation& call);

  // After the first run. Throws if somebody wrote to what is kept otherwise. Warns, once, if none of the operators ran.
  void end_first(const RankState& state);
  // After a later one. Throws if it called fewer of them.
  void end_again(const RankState& state) const;
  void clear() { entries_.clear(); }

 private:
  friend class KeptCall;

  struct Result {
    at::Tensor part;  // undefined: the operator gave none
    Spec spec;
    const Origin* origin = nullptr;
    MetaPtr meta;  // of the first run's tensor, which may be written to; null: nobody else has the part
    uint32_t writes = 0, version = 0;
    bool is_copy = false;  // the body writes to the result
    bool is_written() const;
  };
  struct Entry {
    const OpInfo* op = nullptr;
    bool is_empty = false;  // not kept: its value waits for other samples
    std::vector<Result> results;
    // Of an operator that runs as others: where the program went on, and which call its gradient belongs to.
    std::optional<ProgramPoint> after;
    ForwardPlans::Slot forward;
  };

  void add(const Invocation& call, std::optional<ProgramPoint> after, const ForwardPlans::Slot* forward);
  // The next call's, which must be of this operator.
  Entry& next(const RankState& state, const OpInfo& info);
  void note_other(const OpInfo& info);
  void copy_before_write(const Meta& memory);

  const OperatorSet& operators_;
  KeptResults* around_ = nullptr;  // of the body in which this one runs
  bool is_first_ = false, is_last_ = false;
  std::vector<Entry> entries_;
  size_t at_ = 0;
  std::vector<const OpInfo*> others_;  // that ran as well, until one is kept
};

// A call while a body that keeps results runs.
class KeptCall {
 public:
  // Of a call that runs as others, those are not looked at while this lives.
  KeptCall(Invocation& call, bool runs_as_others);
  ~KeptCall();
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;

  // Whether an earlier run kept its results: they are on the stack then, in place of the arguments.
  bool take();
  // After it ran.
  void keep();

 private:
  void put(KeptResults::Entry& entry, bool is_last);

  Invocation& call_;
  const bool runs_as_others_;
  KeptResults* const bodies_;  // the innermost
  bool is_listed_ = false;
};

}  // namespace tessera::dtensor
