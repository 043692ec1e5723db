#include "tessera/plan/adapters.h"

#include <algorithm>

#include "tessera/base/text.h"

namespace tessera::plan {
namespace {

using Kind = ModuleTree::Kind;
using Adapters = std::vector<AdapterInfo>;

constexpr const char* kLayer = "base_layer";

bool is_matrix(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() == 2; }

AdapterInfo adapter_of(const ModuleTree& layer, const std::string& name, const std::string& layer_name,
                       const at::Tensor& parameter) {
  AdapterInfo adapter{name, dotted(layer_name, "weight"), {}};
  if (!is_matrix(layer.weight) || !parameter.defined()) {
    return adapter;
  }
  const int64_t made = layer.kind == Kind::kLinear ? 0 : 1, read = 1 - made;
  if (parameter.dim() >= 1 && parameter.size(0) == layer.weight.size(made)) {
    adapter.dims[made] = 0;
  }
  if (parameter.dim() >= 2 && parameter.size(1) == layer.weight.size(read)) {
    adapter.dims[read] = 1;
  }
  return adapter;
}

void add_parameters(const ModuleTree& layer, const std::string& layer_name, const ModuleTree& module,
                    const std::string& prefix, Adapters& adapters) {
  for (const auto& [name, parameter] : module.parameters) {
    adapters.push_back(adapter_of(layer, dotted(prefix, name), layer_name, parameter));
  }
  for (const ModuleTree& child : module.children) {
    if (child.name != kLayer) {
      add_parameters(layer, layer_name, child, dotted(prefix, child.name), adapters);
    }
  }
}

void add_all(const ModuleTree& module, const std::string& prefix, Adapters& adapters) {
  const WrappedLayer wrapped = layer_of(module);
  if (wrapped.layer && wrapped.layer != &module) {
    add_parameters(*wrapped.layer, dotted(prefix, wrapped.name), module, prefix, adapters);
    return;
  }
  for (const ModuleTree& child : module.children) {
    add_all(child, dotted(prefix, child.name), adapters);
  }
}

}  // namespace

WrappedLayer layer_of(const ModuleTree& module) {
  if (module.kind == Kind::kLinear || module.kind == Kind::kTransposedLinear || module.kind == Kind::kEmbedding) {
    return {&module, ""};
  }
  const auto base = std::find_if(module.children.begin(), module.children.end(),
                                 [](const ModuleTree& child) { return child.name == kLayer; });
  if (base == module.children.end()) {
    return {};
  }
  WrappedLayer inner = layer_of(*base);
  inner.name = dotted(kLayer, inner.name);
  return inner.layer ? inner : WrappedLayer{};
}

std::string name_before_wrapping(std::string_view name) {
  constexpr std::string_view kModel = "base_model.model.";
  if (name.starts_with(kModel)) {
    name.remove_prefix(kModel.size());
  }
  auto parts = base::split(std::string(name), '.');
  std::erase(parts, kLayer);
  return base::join(parts, ".");
}

layout::Placement placement_beside(const AdapterInfo& adapter, const layout::Placement& weight) {
  const auto dim = weight.is_shard() && !weight.spans ? adapter.dims.find(weight.dim) : adapter.dims.end();
  if (dim == adapter.dims.end()) {
    return layout::Replicate();
  }
  layout::Placement own = weight;
  own.dim = static_cast<int32_t>(dim->second);
  return own;
}

std::vector<AdapterInfo> find_adapters(const ModuleTree& model) {
  Adapters adapters;
  add_all(model, "", adapters);
  return adapters;
}

}  // namespace tessera::plan
