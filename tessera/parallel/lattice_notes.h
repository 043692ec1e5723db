// What is said of a lattice that does not fit how samples are dealt.
#pragma once

#include <cstdint>

#include "tessera/plan/plan.h"
#include "tessera/plan/rows.h"

namespace tessera::parallel {

// Warnings of rank 0, in `exact` numerics, each once. Not errors: bits are the same, time or memory is lost.
class LatticeNotes {
 public:
  // Where samples that are dealt together, `samples` of a step of `of_step`, leave ranks of the batch axes with nothing
  // to do because a rank holds whole batch leaves of the lattice, of which there are too few.
  void note_idle(const char* who, const plan::Plan& plan, int64_t samples, int64_t of_step);

  // Gradients wait for the step's last pass, though the plan merges them in each.
  void note_blocks(const plan::Plan& plan, const plan::Rows& rows);

 private:
  bool has_noted_idle_ = false;
  bool has_noted_blocks_ = false;
};

}  // namespace tessera::parallel
