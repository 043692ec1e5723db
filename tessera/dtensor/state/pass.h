// Where a rank's program is in its steps and passes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "tessera/dtensor/record/sites.h"
#include "tessera/layout/mesh.h"

namespace tessera::dtensor {

// What means over some of the step's samples are; see part_means.h.
struct StepMeans {
  int64_t parts = 1, samples = 0;  // of a step that the program takes in a loop of its own: its passes, and their
                                   // samples together; 0: none yet
  bool in_job = false;             // the micro-batches are a job's, of any sizes
  bool as_shares = false;          // such a mean is its share of the step's, not that of its own samples
  bool told_undivided = false;     // the program knows that its losses are not divided
};

// The pass that the rank is in, which `parallel/step.h` begins and ends. A setter gives back what was there.
class Pass {
 public:
  Sites sites;

  // Factories on plain tensors give DTensors on this mesh.
  const std::optional<layout::Mesh>& region() const { return region_; }
  std::optional<layout::Mesh> set_region(std::optional<layout::Mesh> mesh) {
    return std::exchange(region_, std::move(mesh));
  }

  // ... and inside backward passes that come after it, on this one.
  const std::optional<layout::Mesh>& backward_region() const { return backward_region_; }
  std::optional<layout::Mesh> set_backward_region(std::optional<layout::Mesh> mesh) {
    return std::exchange(backward_region_, std::move(mesh));
  }

  // A forward pass runs again, inside backward.
  bool is_recomputing() const { return is_recomputing_; }
  bool set_recomputing(bool on) { return std::exchange(is_recomputing_, on); }

  const StepMeans& means() const { return means_; }
  // Throws if the step has no pass, or less than no sample.
  StepMeans set_means(StepMeans means);
  bool set_means_as_shares(bool on) { return std::exchange(means_.as_shares, on); }
  void tell_undivided() { means_.told_undivided = true; }

 private:
  std::optional<layout::Mesh> region_, backward_region_;
  bool is_recomputing_ = false;
  StepMeans means_;
};

}  // namespace tessera::dtensor
