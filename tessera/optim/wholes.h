// Whole parameters and gradients, each at its owner: what a matrix-wise optimizer needs of a mesh.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/optim/owner_plan.h"

namespace tessera::optim {

// While it lives, plain tensors on a rank's thread are plain libtorch's on one thread: what is made of them is plain,
// and bits do not depend on how many ranks share the cores. Random numbers are libtorch's own.
class PlainScope {
 public:
  PlainScope();
  ~PlainScope();
  PlainScope(const PlainScope&) = delete;
  PlainScope& operator=(const PlainScope&) = delete;

 private:
  struct Scopes;
  std::unique_ptr<Scopes> scopes_;
};

// Lends whole parameters to a step of an optimizer, and takes the new values back. Owners are planned (owner_plan.h)
// when parameters are lent first. They keep the whole values that they gave: a parameter that nobody else wrote since
// is not gathered again, so that a step sends each gradient to the owner and each value back, 2 T (N-1)/N bytes where N
// ranks cut T, and one small number a parameter by which ranks agree on what was written. On the parameters' thread.
class Wholes {
 public:
  explicit Wholes(OwnedOver over = OwnedOver::kCuts) : over_(over) {}

  // Chooses the owners of DTensors on one mesh. Later calls must name the same parameters.
  void plan(const std::vector<at::Tensor>& parameters);

  // For each parameter the whole of it with its whole gradient, plain tensors at its owner (or owners, one for each
  // replica); undefined elsewhere, and where there is no gradient. Plans first. All ranks have gradients of the
  // same parameters. Collective over the mesh.
  std::vector<at::Tensor> lend(const std::vector<at::Tensor>& parameters);

  // The parameters get the values that the tensors lent last have now. Collective over the mesh.
  void take_back();

  // Whether this rank owns the parameter of a place; of those that were lent.
  bool is_here(size_t place) const;

  // What is kept for a parameter: the whole value of a DTensor, plain at its owner, undefined elsewhere (collective),
  // ...
  at::Tensor to_owner(size_t place, const at::Tensor& value) const;
  // ... and what its owner has, as a DTensor that is there and nowhere else. Elsewhere `kept` is undefined.
  at::Tensor from_owner(size_t place, const at::Tensor& kept, const std::vector<int64_t>& sizes,
                        c10::ScalarType dtype) const;

  // Every rank's text, by rank of the mesh. Collective over it.
  std::vector<std::string> exchange(const std::string& own) const;

 private:
  struct Lent {
    at::Tensor parameter;
    layout::Placements owner;
    at::Tensor whole;                     // at the owner
    std::optional<dtensor::Moment> then;  // when the parameter got that value
    bool is_lent = false;
  };

  std::vector<bool> agree_on_writes() const;
  void gather(size_t place);

  OwnedOver over_;
  std::vector<Lent> all_;
};

}  // namespace tessera::optim
