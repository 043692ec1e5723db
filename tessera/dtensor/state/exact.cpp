#include "tessera/dtensor/state/exact.h"

#include "tessera/base/error.h"

namespace tessera::dtensor {

void Exact::set_lattice(std::optional<sums::Lattice> lattice) {
  flags_.set(kExact, lattice.has_value());
  lattice_ = lattice;
}

void Exact::set_step_tokens(int64_t tokens) {
  TESSERA_CHECK(tokens >= 0, "[set_step_tokens] a step of ", tokens,
                " tokens; accepted: a number of tokens, or 0 for as many as there are");
  step_tokens_ = tokens;
}

void Exact::begin_continuation(Continuation& continuation) {
  TESSERA_ASSERT(!continuation_);
  continuation_ = &continuation;
}

}  // namespace tessera::dtensor
