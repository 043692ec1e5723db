// Layers that adapters were put on, as peft does: a module that has the layer in it, named `base_layer`, beside what it
// adds.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/placement.h"
#include "tessera/plan/module_tree.h"

namespace tessera::plan {

// The product or table that `module` stands for, and its name in it: itself, or what it wraps (`base_layer`). Null for
// any other module.
struct WrappedLayer {
  const ModuleTree* layer = nullptr;
  std::string name;
};
WrappedLayer layer_of(const ModuleTree& module);

// The name that a module or a parameter had before its model was wrapped: without `base_layer`, and without the
// `base_model.model.` in front. Others are as they are.
std::string name_before_wrapping(std::string_view name);

// One parameter that an adapter has beside a layer.
struct AdapterInfo {
  std::string name;
  std::string layer;  // the name of that layer's weight
  // Dims of that weight that dims of this parameter stand for, where they are as long: the features that the layer
  // reads are dim 1 of a matrix, those that it makes dim 0.
  std::map<int64_t, int64_t> dims;
};

// How it lies on an axis on which the weight lies so: cut in the dim that stands for the one which is cut, or whole.
layout::Placement placement_beside(const AdapterInfo& adapter, const layout::Placement& weight);

// All of a model, in the order of registration.
std::vector<AdapterInfo> find_adapters(const ModuleTree& model);

}  // namespace tessera::plan
