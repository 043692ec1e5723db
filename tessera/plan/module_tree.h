// What a plan needs to know of a model, in whatever language the model is written.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tessera::plan {

// One module of a model, and those in it.
struct ModuleTree {
  enum class Kind : uint8_t {
    kOther,
    kLinear,            // a product with `weight` [out, in], and maybe a `bias`
    kTransposedLinear,  // the same with `weight` [in, out]
    kEmbedding,         // a table `weight` [rows, width]
    kChain,             // its children run in the order of registration, one after the other
  };
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

  std::string name;  // in its parent
  Kind kind = Kind::kOther;
  Tensors parameters, buffers;  // its own
  at::Tensor weight, bias;      // of a product or a table: what its forward reads
  // Query heads and key/value heads of the attention in it; 0: unknown.
  int64_t heads = 0;
  int64_t kv_heads = 0;
  bool alternates = false;           // rows of two products that are fused in it take turns
  std::vector<ModuleTree> children;  // in the order of registration
};

// A C++ module.
ModuleTree describe(const torch::nn::Module& module);

// A parameter or buffer under its first dotted name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
  std::vector<std::string> aliases = {};  // the other names, of what is tied
};

// Every tensor of the model once, parameters first.
std::vector<NamedTensor> tensors_of(const ModuleTree& model);

// `prefix.name`, or the one that is not empty.
std::string dotted(const std::string& prefix, const std::string& name);

}  // namespace tessera::plan
