// Whether the ranks were handed the same batch.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

// Which calls of a model are checked: the first few, where a program that builds a batch of its own on each rank does
// so already, and ever fewer of the later ones. The same calls on every rank.
class CheckedCalls {
 public:
  // Counts a call: whether it is one of 1, 2, 4, 8, ...
  bool next() { return std::has_single_bit(++calls_); }

 private:
  uint64_t calls_ = 0;
};

// Throws if the ranks of the plan's mesh hold other values of the same plain tensors. `who` is what took them, such as
// `forward`, and `parts` what to write where each rank has its own rows. Collective over the mesh.
void verify_same_batch(const std::vector<dtensor::NamedValue>& batch, const plan::Plan& plan, const char* who,
                       const std::string& parts);

}  // namespace tessera::parallel
