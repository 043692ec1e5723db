#include "tessera/parallel/roles.h"

#include <algorithm>
#include <unordered_set>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace tessera::parallel {
namespace {

// `reader` can read what `maker` makes: all of it, or (fused products) an equal part.
bool can_read(const LinearInfo& reader, const LinearInfo& maker) { return maker.out % reader.in == 0; }

bool has_matrices(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.dim() >= 2; });
}

bool is_position_name(const std::string& name) {
  const auto last = name.substr(name.rfind('.') + 1);
  return last == "wpe" || last.find("pos") != std::string::npos;
}

class Walk {
 public:
  ModelRoles roles;

  void visit(const torch::nn::Module& module, const std::string& prefix) {
    if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
      return add_group({linear_info(*linear, prefix)}, true);
    }
    if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
      if (is_new(embedding->weight)) {
        roles.embeddings.push_back({prefix, embedding->weight.size(0), is_position_name(prefix)});
      }
      return;
    }
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      if (parameter.value().dim() >= 2 && is_new(parameter.value())) {
        roles.unknown.push_back(dotted(prefix, parameter.key()));
      }
    }
    visit_children(module, prefix);
  }

 private:
  static std::string dotted(const std::string& prefix, const std::string& name) {
    return prefix.empty() ? name : prefix + "." + name;
  }

  bool is_new(const at::Tensor& parameter) { return seen_.insert(parameter.unsafeGetTensorImpl()).second; }

  static LinearInfo linear_info(const torch::nn::LinearImpl& linear, const std::string& name) {
    return {.name = name, .in = linear.weight.size(1), .out = linear.weight.size(0), .has_bias = linear.bias.defined()};
  }

  void add_group(const std::vector<LinearInfo>& linears, bool is_chain) {
    for (auto& group : pair_linears(linears, is_chain)) {
      roles.groups.push_back(std::move(group));
    }
  }

  // Linears in a row, with nothing but modules without matrices between them, are paired.
  void visit_children(const torch::nn::Module& module, const std::string& prefix) {
    const bool is_chain = dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
                          dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr;
    std::vector<LinearInfo> open;
    for (const auto& child : module.named_children()) {
      const auto name = dotted(prefix, child.key());
      const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(child.value().get());
      if (linear == nullptr) {
        if (has_matrices(*child.value())) {
          add_group(std::exchange(open, {}), is_chain);
        }
        visit(*child.value(), name);
      } else if (is_new(linear->weight)) {
        open.push_back(linear_info(*linear, name));
      }
    }
    add_group(open, is_chain);
  }

  std::unordered_set<const void*> seen_;
};

}  // namespace

std::vector<LinearGroup> pair_linears(const std::vector<LinearInfo>& linears, bool is_chain) {
  std::vector<LinearGroup> groups;
  bool is_open = false;
  const auto reads_open = [&](const LinearInfo& linear) {
    const auto& columns = groups.back().columns;
    return std::any_of(columns.begin(), columns.end(), [&](const LinearInfo& made) { return can_read(linear, made); });
  };
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto& linear = linears[i];
    if (is_open && reads_open(linear)) {
      // A sibling of the same widths may come first: of those that could lead back, the last one does.
      const auto width = groups.back().columns.front().in;
      const bool may_be_sibling = !is_chain && linear.in == width;
      const bool is_last = i + 1 == linears.size() || linears[i + 1].in != width || linears[i + 1].out != linear.out ||
                           linear.out != width;
      const bool leads_back = linear.out == width && is_last;
      if (!may_be_sibling || leads_back) {
        groups.back().row = linear;
        is_open = false;
        continue;
      }
    }
    const bool is_sibling = is_open && !is_chain && linear.in == groups.back().columns.front().in;
    if (!is_sibling) {
      groups.emplace_back();
    }
    groups.back().columns.push_back(linear);
    is_open = true;
  }
  return groups;
}

ModelRoles find_roles(const torch::nn::Module& model) {
  Walk walk;
  walk.visit(model, "");
  return std::move(walk.roles);
}

}  // namespace tessera::parallel
