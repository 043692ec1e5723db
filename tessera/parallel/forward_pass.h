// Forward passes of a placed model that the program runs itself.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/parallel/lattice_notes.h"
#include "tessera/parallel/local_rows.h"
#include "tessera/parallel/same_batch.h"
#include "tessera/parallel/step.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

// The forward passes of a placed model that the program runs itself (`loss = model(batch); loss.backward()`), one after
// the other on one rank. `begin` and `end` stand around each: between them factories give DTensors on the plan's mesh,
// and what is gathered until the next `begin` is shared within the plan's budget.
//
// Random numbers belong to a pass: those with gradients are the equal micro-batches of one training step after the
// other, those without (an evaluation, a token of generated text) are counted since the last one with, and draw numbers
// of their own.
class ForwardPasses {
 public:
  // A step has `micro_batches` passes with gradients. `rows` says what ranks pass.
  explicit ForwardPasses(plan::Plan plan, int64_t micro_batches = 1, Batch rows = Batch::kWhole);

  // Starts a pass: its batch is cut over the plan's batch axes. `batch` are plain tensors, the same on every rank or
  // each data rank's own rows, and DTensors, which stay as they are. Those whose dim 0 is as long as the first one's
  // are samples (dim 0 is labelled batch and, of two dims, the second sequence); the others are replicated. In passes
  // 1, 2, 4, 8, ... ranks compare what they were given (ranks of one data coordinate, of their own rows) and, until the
  // next begins, the plain operands of every operator (a loss's targets): throws if they differ. Collective over the
  // plan's mesh in those passes, and where ranks have rows of their own (see LocalRows).
  std::vector<at::Tensor> begin(const std::vector<dtensor::NamedValue>& batch);

  // More rows of the last pass's samples, such as the targets of a loss that is computed outside of the model: as a
  // tensor of its batch. Throws if they are of another number. Collective over the plan's mesh where rows move.
  at::Tensor more_rows(const at::Tensor& rows);

  // Ends it; called too when the forward threw.
  void end();

  // Those of a copy of the model: they are counted on from here, and none is open.
  ForwardPasses of_copy() const;

  // The training step that the next pass with gradients belongs to. Throws if only some of a step's micro-batches have
  // passed: the gradients of those are in no checkpoint.
  int64_t step() const;
  // Goes on with that step from its first micro-batch.
  void set_step(int64_t step);

  // The passes that are left of a step which has begun do not come: the next one belongs to the step after it. After
  // the last backward. Between two steps it does nothing.
  void finish_step();

  // The next step's passes run elsewhere (WholeStep): its number, and from now on the one after it is next.
  int64_t give_step();

  const plan::Plan& plan() const { return plan_; }

 private:
  // The step that the next pass belongs to.
  StepOptions next_step();

  // The samples of that pass, which it counts.
  PassSamples next_samples(int64_t count);

  at::Tensor distribute(const at::Tensor& tensor, bool are_rows) const;

  // The plain tensor in this layout, in one step of the graph where it has a gradient.
  at::Tensor placed(const at::Tensor& tensor, const layout::Spec& spec) const;

  // Whether each data rank has rows of its own.
  bool is_local() const { return rows_ == Batch::kLocal && !plan_.batch_axes.empty(); }

  void check(const std::vector<dtensor::NamedValue>& batch);
  void end_checks();
  void verify_same(const std::vector<dtensor::NamedValue>& batch) const;

  plan::Plan plan_;
  int64_t micro_batches_;
  Batch rows_;
  int64_t passes_ = 0;       // with gradients, so far
  int64_t evaluations_ = 0;  // without, since the last one with
  CheckedCalls calls_;
  LatticeNotes notes_;
  bool checks_operands_ = false;
  PassSamples samples_;             // of the last pass
  std::optional<LocalRows> local_;  // ... where ranks passed rows of their own
  Step step_;
};

}  // namespace tessera::parallel
