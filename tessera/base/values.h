// Whether the tensors of a thread have values, or only sizes.
#pragma once

namespace tessera::base {

// While it lives, loops over elements that ask `has_values` do nothing on this thread: their results hold what their
// memory held. For programs that are run to learn what they take, and not what they compute. Nests.
class WithoutValues {
 public:
  WithoutValues();
  ~WithoutValues();
  WithoutValues(const WithoutValues&) = delete;
  WithoutValues& operator=(const WithoutValues&) = delete;

 private:
  const bool before_;
};

bool has_values();

}  // namespace tessera::base
