// What an optimizer of libtorch keeps, as contents of a checkpoint.
#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/plan/module_tree.h"

namespace tessera::checkpoint {

// The value under which everything stands that is no tensor.
constexpr const char* kOptimizer = "optimizer";

// An optimizer and the named tensors of the model that it updates. The state of an owned optimizer is shared meanwhile
// (SharedState).
struct NamedOptimizer {
  torch::optim::Optimizer& optimizer;
  const std::vector<plan::NamedTensor>& tensors;
};

// Adds its state: tensors as moments called `exp_avg/<name of the parameter>`; its kind, the options of its groups and
// the numbers of each parameter's state as the value `optimizer`. Throws DataError for an optimizer of no known kind,
// with the line that makes it known (parallel::register_optimizer), or with a parameter that the model lacks.
void add_optimizer(const NamedOptimizer& named, Contents& contents);

// Makes the state that a checkpoint has and the optimizer lacks, because it has not taken a step: zeros, placed as the
// parameters are. After it add_optimizer gives what is to be loaded. Throws as add_optimizer, and DataError if the
// checkpoint, which `source` names, has the state of another kind of optimizer or of none. Collective over the
// parameters' mesh.
void prepare_optimizer(const NamedOptimizer& named, const catalogue::Catalogue& found, const std::string& source);

// Throws DataError, which names the first parameter that differs, if the value `optimizer` has other groups of
// parameters.
void verify_groups(const NamedOptimizer& named, const std::string& value, const std::string& source);

// Sets options and numbers to those of a value whose groups were verified.
void restore_optimizer(const NamedOptimizer& named, const std::string& value);

}  // namespace tessera::checkpoint
