// How many targets count in the mean losses of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/layout/origin.h"

namespace tessera::parallel {

// The integers among a step's batch, any of which its losses may take for targets: as they are, or from the second
// position on (the next tokens), with or without an ignored one in place of the last. So the targets of all
// micro-batches are counted before the first has passed. One per step; plain tensors, which it does not copy.
class StepTargets {
 public:
  // Of these tensors, with all of the step's samples along dim 0.
  explicit StepTargets(const std::vector<dtensor::NamedValue>& batch);

  // The name of one that has targets to ignore, as libtorch numbers them (-100).
  const std::optional<std::string>& has_ignored() const { return has_ignored_; }

  struct Counts {
    int64_t of_pass = 0, of_step = 0;
    bool operator==(const Counts&) const = default;
  };

  // Of a loss with these targets, whole, in the pass over `samples` samples of which `origin` says which they are: by
  // the integers that are the same there. Of several those that count `of_step` in the step, as the loss found in the
  // passes before, or else least. Nothing if the targets are none of the batch's, and none is ignored; throws if one
  // is.
  std::optional<Counts> count(const at::Tensor& targets, int64_t ignored, int64_t samples, const layout::Origin* origin,
                              std::optional<int64_t> of_step);
  // The same of targets that are known to be this tensor's, as they are.
  Counts count_of(const std::string& name, int64_t ignored, int64_t samples, const layout::Origin* origin);

 private:
  // One way of taking targets out of the batch.
  class Reading {
   public:
    Reading(const dtensor::NamedValue& integers, bool is_next)
        : name_(integers.name), integers_(integers.tensor), is_next_(is_next) {}
    bool is_as_given(const std::string& name) const { return !is_next_ && name_ == name; }
    // Whether the targets of this pass are so.
    bool gives(const at::Tensor& targets, int64_t ignored, int64_t samples, const layout::Origin* origin) const;
    // ... and how many of them count.
    Counts count(int64_t ignored, int64_t samples, const layout::Origin* origin);

   private:
    // What counts in each row of the step where this is ignored.
    struct Known {
      int64_t ignored;
      std::vector<int64_t> of_rows;
      int64_t of_step;
    };

    std::string name_;
    at::Tensor integers_;
    bool is_next_;  // they are the next tokens
    std::optional<Known> known_;
  };

  std::vector<Reading> readings_;
  size_t last_ = 0;  // the one found last
  std::optional<std::string> has_ignored_;
};

}  // namespace tessera::parallel
