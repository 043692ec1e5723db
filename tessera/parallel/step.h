// One training step on one rank: what a program that runs a placed model tells the rank about its passes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/state/gather_cache.h"
#include "tessera/dtensor/state/pass.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/layout/spec.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/rows.h"

namespace tessera::parallel {

// The samples of one pass, and how they are dealt to the ranks.
struct PassSamples {
  int64_t count = 0;                       // of all ranks
  int64_t total = 0;                       // of the step
  layout::Placements placements = {};      // of a tensor that has them along dim 0
  const layout::Origin* origin = nullptr;  // which of the step's samples its rows are
};

// Micro-batch `index` of a step that is dealt so.
PassSamples samples_of(plan::Rows& rows, int64_t index);

// `count` samples from `first` on of a step of `total`: this pass is cut over the plan's batch axes by itself.
PassSamples samples_of(const plan::Plan& plan, int64_t count, int64_t total, int64_t first);

// The layout of a tensor that has the samples of a pass along dim 0, and positions along dim 1 if `has_positions`:
// labelled so. `sizes` are those of the whole tensor.
layout::Spec spec_of(const layout::Mesh& mesh, const PassSamples& samples, std::vector<int64_t> sizes,
                     const at::Tensor& like, bool has_positions);

// When the backward of a pass runs.
enum class Backward : uint8_t {
  kInPass,     // before the pass ends
  kAfterPass,  // whenever the program wants, until the next pass begins
};

struct StepOptions {
  uint64_t number = 0;      // that random numbers belong to
  uint64_t evaluation = 0;  // which pass without gradients it is, since the last one with; 0: passes with gradients
  // Whose the passes' means are. 0: shares of the step's mean, which are added up; passes may be of any sizes. Else
  // each pass's own, as in a plain loop over so many passes of equal sizes.
  int64_t passes_of_loop = 0;
  Backward backward = Backward::kInPass;

  bool operator==(const StepOptions&) const = default;
};

// The one protocol of a step:
//
//     step.begin({...});
//     for each micro-batch:
//       step.begin_pass(samples);  forward (and backward);  step.end_pass();
//     step.end();
//
// In a pass factories on plain tensors give DTensors on the plan's mesh, and what is gathered is shared within the
// plan's budget: until the pass ends, or if backward runs after it, until the next one begins. Several steps of one
// rank may be open (a student's and its teacher's), and a pass may be inside of another's. Ending what is not open does
// nothing. One per rank and model; the rank's own thread uses it.
class Step {
 public:
  explicit Step(const plan::Plan& plan) : mesh_(plan.mesh), gathered_bytes_(plan.keep_gathered_bytes) {}
  Step(Step&& other)
      : mesh_(std::move(other.mesh_)),
        gathered_bytes_(other.gathered_bytes_),
        options_(std::exchange(other.options_, std::nullopt)),
        before_(std::exchange(other.before_, std::nullopt)) {}
  Step& operator=(Step&&) = delete;
  ~Step() { end(); }

  // Ends the step before it.
  void begin(const StepOptions& options);
  // What `begin` was told; nothing outside of a step.
  const std::optional<StepOptions>& options() const { return options_; }
  // Throws if no step is open, or a pass is, or if it has samples that its step lacks.
  void begin_pass(const PassSamples& samples);
  // Called too when the pass threw.
  void end_pass();

  // Leaves the open pass, which goes on later: where it stands in the program, and what it gathered of activations.
  struct Paused;
  Paused pause();
  // Throws as begin_pass.
  void resume(Paused paused);

  void end();

 private:
  dtensor::StepMeans means_of(const dtensor::StepMeans& before, const PassSamples& samples) const;

  // The pass that this one is inside of.
  struct Outer {
    dtensor::Sites::Position position;
    std::optional<layout::Mesh> backward_region;
    int64_t gathered_bytes = 0;
  };
  // What the rank's state was before the pass.
  struct Before {
    std::optional<layout::Mesh> region;
    dtensor::StepMeans means;
    std::optional<Outer> outer;
    std::optional<dtensor::Pass> pass = std::nullopt;  // ... if it goes on: what the rank stood in meanwhile
  };
  void verify_begins() const;
  Before before_pass(const dtensor::RankState& rank) const;

  layout::Mesh mesh_;
  int64_t gathered_bytes_;
  std::optional<StepOptions> options_;
  std::optional<Before> before_;  // of the pass that is open
};

struct Step::Paused {
  dtensor::Pass pass;
  dtensor::GatherCache gathered;
};

// A step from here to the end of the scope.
class StepScope {
 public:
  StepScope(Step& step, const StepOptions& options) : step_(step) { step.begin(options); }
  ~StepScope() { step_.end(); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  Step& step_;
};

}  // namespace tessera::parallel
