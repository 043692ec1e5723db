// What the walk of a body of another stage must be like for its rank to go past the body later (pass_over.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Whether the tensor is a DTensor without a part here, in the walk that runs.
bool is_absent(const RankState& state, const at::Tensor& tensor);

// Whether a walk that is given this can be the same for any elements.
bool is_passable_input(const at::Tensor& input);

bool wants_gradient(const at::Tensor& tensor);
// Those that do.
std::vector<at::Tensor> wanting(const std::vector<at::Tensor>& tensors);

constexpr size_t kNone = ~size_t{0};
// Which of them has these rows; kNone where there are no rows. Nothing if none has.
std::optional<size_t> find_origin(const Origin* origin, const std::vector<at::Tensor>& tensors);

// What a walk must not touch: versions of its inputs, layouts of those that have a part here, and libtorch's own stream
// of random bits. Its messages are counted.
class Untouched {
 public:
  // Both outlive it.
  Untouched(const RankState& state, const std::vector<at::Tensor>& inputs);
  bool holds() const;
  // Whether this rank has sent or received nothing.
  bool is_silent() const;

 private:
  uint64_t drawn() const;
  Spec spec_of_present(const at::Tensor& tensor) const;

  const RankState& state_;
  const std::vector<at::Tensor>& inputs_;
  int64_t messages_;
  uint64_t drawn_;
  std::vector<uint32_t> versions_;
  std::vector<Spec> specs_;
};

// Whether others can stand for the results of a walk: tensors without elements, of which one at most wants a gradient,
// or inputs as they are.
bool can_be_replaced(const RankState& state, const std::vector<at::Tensor>& results,
                     const std::vector<at::Tensor>& inputs);

// Whether the inputs that want gradients have all of theirs from the results that want one, if any does.
bool is_differentiated_whole(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs);

// Whether they are On the same coordinates, or on none.
bool is_at_same_place(const Spec& a, const Spec& b);

}  // namespace tessera::dtensor
