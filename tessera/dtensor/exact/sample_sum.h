// Sums over the samples of a step, as far as they are here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/dtensor/exact/held_leaves.h"
#include "tessera/dtensor/exact/rank_merge.h"
#include "tessera/dtensor/plan/exact_sum.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

struct RankState;

// One use of one parameter: the sum so far of the samples that are here, in float32 where the operator's result is of
// 16 bits. A value; sums are shared and never written to.
class SampleSum {
 public:
  explicit SampleSum(const SamplePlan& plan) : leaves_(plan.leaves), merge_axes_(plan.merge_axes), terms_(plan.terms) {}

  // Whether the sums of a call with this plan can be added to it.
  bool continues(const SamplePlan& plan) const { return leaves_ == plan.leaves && terms_ == plan.terms; }

  // Adds the samples of one call, in order. Writes to sums that nobody else has. `like` has the sizes and options of
  // the sums; `call` is a number that no other call on this rank has.
  void add(const ExactSum& sum, uint64_t call, const Origin* origin, c10::ArrayRef<c10::IValue> args,
           const at::Tensor& like);

  // The same on a rank where the call does not run, which has none of the samples' sums.
  void note(const SamplePlan& plan, uint64_t call, const Origin* origin, const at::Tensor& like);

  // The same in a walk (comm::Walk) beside the one that notes the call: without samples until that one's are joined.
  void note_elsewhere(const SamplePlan& plan, uint64_t call, const Origin* origin, const at::Tensor& like);
  bool has_samples() const { return seen_ > 0; }

  // Adds those of `other`. Throws if a sample is in both.
  void join(const SampleSum& other, const char* op);

  // The sum over all ranks, laid out as `to` and, once merged, rounded to its dtype. Collective over the axes that cut
  // tokens, and those of the way to that layout. Of a complete sum it may lie in this
  // one's memory, unless a copy of this has that too: forget() then.
  at::Tensor merged(RankState& state, const layout::Spec& to, const char* op) const;

  // Of the complete leaves this rank keeps its part of their sums over all ranks alone, as merged() would lay it out:
  // which is for this layout from now on. begin_merge() hands out this rank's sums, end_merge() takes what became of
  // them over the ranks (rank_merge.h); nothing where there is nothing to merge.
  std::optional<RankMerge> begin_merge(RankState& state, const layout::Spec& to);
  void end_merge(RankMerge merge);

  // Keeps which samples it is of, and no memory.
  void forget();
  // Throws if a sample is in both.
  void verify_apart_from(const SampleSum& other, const char* op) const;

  // Whether both lie alike, as far as they have samples.
  bool is_alike(const SampleSum& other) const {
    return terms_ == other.terms_ || !has_samples() || !other.has_samples();
  }
  // Of one of its sums, on this rank.
  int64_t bytes() const { return like_.numel() * static_cast<int64_t>(like_.itemsize()); }

  // Whether all samples of the step are in it, on whatever ranks.
  bool is_complete() const { return samples_seen() == leaves_.samples; }
  int64_t samples_seen() const { return has_samples() ? seen_ : seen_elsewhere_; }
  int64_t samples_of_step() const { return leaves_.samples; }
  // Whether both are parts of the step with no micro-batch in common.
  bool is_apart_from(const SampleSum& other) const;
  // Whether the samples of some call are in both: copies of one gradient that reached a parameter on two ways (w + w).
  bool shares_calls(const SampleSum& other) const;

 private:
  // A leaf that is not complete: the samples [begin of the leaf, next) summed, and single ones that came before their
  // turn.
  struct Open {
    int64_t next = 0;
    at::Tensor sum;
    std::map<int64_t, at::Tensor> loose;
  };

  void note_call(uint64_t call, const Origin* origin, const at::Tensor& like);
  void add_sample(int64_t leaf, int64_t sample, const at::Tensor& term, const char* op);
  void take_turn(int64_t leaf, Open& open);
  std::vector<comm::NodeSum> nodes() const;
  RankMerge merge_of(RankState& state, const layout::Spec& to, std::vector<comm::NodeSum> mine,
                     bool complete_ones_only) const;
  void take_merged(const std::vector<comm::NodeSum>& more, const layout::Spec& at);
  // Whether no rank has sums that are not merged; the same on all.
  bool is_merged() const;
  // Whether this rank is where the sums are.
  bool is_here(const RankState& state) const;
  int64_t batch_leaf(int64_t leaf) const { return leaf / leaves_.sequence_leaves; }

  sums::TokenLeaves leaves_;
  std::vector<int64_t> merge_axes_;
  layout::Spec terms_;
  int64_t seen_ = 0;                 // samples, of all ranks
  int64_t seen_elsewhere_ = 0;       // ... that another walk notes, as far as this one knows
  std::set<const Origin*> seen_in_;  // the micro-batches
  std::set<uint64_t> calls_;
  at::Tensor like_;                    // one element, expanded
  std::map<int64_t, Open> open_;       // by leaf
  std::vector<comm::NodeSum> closed_;  // complete leaves
  std::vector<comm::NodeSum> merged_;  // ... of all ranks: the same nodes on each
  layout::Spec merged_at_;             // as those lie
  HeldLeaves held_;                    // of an imagined job; else empty
};

}  // namespace tessera::dtensor
