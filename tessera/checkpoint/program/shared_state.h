// The state of an owned optimizer as files have it.
#pragma once

#include "tessera/optim/owned.h"

namespace tessera::checkpoint {

// While it lives, the state of an optimizer is one that every rank sees: that of an owned one, which is plain and at
// the owner of each parameter alone, is on every rank alike, with tensors that are DTensors there and nowhere else.
// Another optimizer's is as it is. On the parameters' thread.
class SharedState {
 public:
  // Of an owned optimizer, `is_empty`: there is no state yet, for what is to be loaded. Collective over the parameters'
  // mesh.
  explicit SharedState(torch::optim::Optimizer& optimizer, bool is_empty = false);
  // The state is what it was, unless it was taken.
  ~SharedState();
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;

  // The state is from now on what it has become meanwhile, each parameter's at its owner. Collective over the mesh.
  void take();

 private:
  using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

  void share();

  optim::Owned* owned_;  // null: nothing is to be done
  std::vector<at::Tensor> parameters_;
  States before_;
};

}  // namespace tessera::checkpoint
