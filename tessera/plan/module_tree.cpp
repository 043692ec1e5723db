#include "tessera/plan/module_tree.h"

#include <unordered_map>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace tessera::plan {
namespace {

using Kind = ModuleTree::Kind;

// What kind of module it is. A typed module reads its members, which a tied weight was assigned to.
void classify(const torch::nn::Module& module, ModuleTree& tree) {
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    tree.kind = Kind::kLinear;
    tree.weight = linear->weight;
    tree.bias = linear->bias;
  } else if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    tree.kind = Kind::kEmbedding;
    tree.weight = embedding->weight;
  } else if (dynamic_cast<const torch::nn::SequentialImpl*>(&module) ||
             dynamic_cast<const torch::nn::ModuleListImpl*>(&module)) {
    tree.kind = Kind::kChain;
  }
}

void collect(const ModuleTree& module, const std::string& prefix, ModuleTree::Tensors ModuleTree::* which,
             bool is_parameter, std::unordered_map<const void*, size_t>& seen, std::vector<NamedTensor>& all) {
  for (const auto& [name, tensor] : module.*which) {
    if (!tensor.defined()) {
      continue;
    }
    const auto [place, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), all.size());
    if (is_new) {
      all.push_back({dotted(prefix, name), tensor, is_parameter});
    } else {
      all[place->second].aliases.push_back(dotted(prefix, name));
    }
  }
  for (const auto& child : module.children) {
    collect(child, dotted(prefix, child.name), which, is_parameter, seen, all);
  }
}

}  // namespace

ModuleTree describe(const torch::nn::Module& module) {
  ModuleTree tree;
  classify(module, tree);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    tree.parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    tree.buffers.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_children()) {
    tree.children.push_back(describe(*item.value()));
    tree.children.back().name = item.key();
  }
  return tree;
}

std::vector<NamedTensor> tensors_of(const ModuleTree& model) {
  std::vector<NamedTensor> all;
  std::unordered_map<const void*, size_t> seen;  // where in `all`
  collect(model, "", &ModuleTree::parameters, true, seen, all);
  collect(model, "", &ModuleTree::buffers, false, seen, all);
  return all;
}

std::string dotted(const std::string& prefix, const std::string& name) {
  return prefix.empty() || name.empty() ? prefix + name : prefix + "." + name;
}

}  // namespace tessera::plan
