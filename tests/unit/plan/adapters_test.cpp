// Layers that adapters were put on: seen by roles, by plans that were made before, and followed by what was added.
#include "tessera/plan/adapters.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/plan/adapter_entries.h"
#include "tessera/plan/plan_model.h"

namespace tessera::plan::adapters_test {
namespace {

ModuleTree linear(const std::string& name, int64_t in, int64_t out, ModuleTree::Kind kind = ModuleTree::Kind::kLinear) {
  ModuleTree tree;
  tree.name = name;
  tree.kind = kind;
  tree.weight = kind == ModuleTree::Kind::kLinear ? at::empty({out, in}) : at::empty({in, out});
  tree.parameters = {{"weight", tree.weight}};
  return tree;
}

ModuleTree group(const std::string& name, std::vector<ModuleTree> children) {
  ModuleTree tree;
  tree.name = name;
  tree.children = std::move(children);
  return tree;
}

// The layer with an adapter of rank 2.
ModuleTree wrapped(ModuleTree layer, int64_t in, int64_t out) {
  const std::string name = layer.name;
  layer.name = "base_layer";
  ModuleTree magnitude;
  magnitude.name = "magnitude";
  magnitude.parameters = {{"default", at::empty({out})}};
  return group(name, {std::move(layer), group("lora_A", {linear("default", in, 2)}),
                      group("lora_B", {linear("default", 2, out)}), magnitude});
}

ModuleTree plain_model() { return group("", {group("mlp", {linear("up", 8, 32), linear("down", 32, 8)})}); }

ModuleTree wrapped_model() {
  return group("", {group("base_model", {group("model", {group("mlp", {wrapped(linear("up", 8, 32), 8, 32),
                                                                       wrapped(linear("down", 32, 8), 32, 8)})})})});
}

std::string storage(const Plan& plan, const std::string& name) {
  const ParameterPlan* entry = plan.find("base_model.model.mlp." + name);
  return entry ? layout::str(plan.mesh, entry->storage) : "none";
}

PlanOptions on(const char* mesh) { return {.mesh = layout::Mesh::parse(mesh)}; }

void expect_cut_with_layers(const Plan& plan) {
  EXPECT_EQ(storage(plan, "up.base_layer.weight"), "{tp: S(0)}");
  EXPECT_EQ(storage(plan, "up.lora_A.default.weight"), "none");
  EXPECT_EQ(storage(plan, "up.lora_B.default.weight"), "{tp: S(0)}");
  EXPECT_EQ(storage(plan, "up.magnitude.default"), "{tp: S(0)}");
  EXPECT_EQ(storage(plan, "down.base_layer.weight"), "{tp: S(1)}");
  EXPECT_EQ(storage(plan, "down.lora_A.default.weight"), "{tp: S(1)}");
  EXPECT_EQ(storage(plan, "down.lora_B.default.weight"), "none");
  EXPECT_EQ(storage(plan, "down.magnitude.default"), "none");
}

TEST(Adapters, AreCutWithTheirLayers) { expect_cut_with_layers(plan_model(wrapped_model(), on("tp=2"))); }

TEST(Adapters, APlanFromBeforeIsOneForTheWrappedModel) {
  const Plan before = plan_model(plain_model(), on("tp=2"));
  const Plan plan = for_wrapped(before, wrapped_model());
  expect_cut_with_layers(plan);
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const NamedTensor& named : tensors_of(wrapped_model())) {
    sizes[named.name] = named.tensor.sizes().vec();
  }
  plan.verify(sizes);
  EXPECT_EQ(for_wrapped(before, plain_model()), before);
  const Plan own = plan_model(wrapped_model(), on("tp=2"));
  EXPECT_EQ(for_wrapped(own, wrapped_model()), own);  // what it leaves whole stays so
}

TEST(Adapters, AreKeptInPartsWhereTheirLayersAre) {
  for (const Sharding sharding : {Sharding::kState, Sharding::kGradients, Sharding::kParameters}) {
    PlanOptions options = on("dp=2,fsdp=2,tp=2");
    options.sharding = sharding;
    options.precision.compute = at::kBFloat16;
    const Plan plan = for_wrapped(plan_model(plain_model(), options), wrapped_model());
    const auto* entry = plan.find("base_model.model.mlp.up.lora_B.default.weight");
    ASSERT_NE(entry, nullptr);
    const auto print = [&](const layout::Placements& placements) { return layout::str(plan.mesh, placements); };
    EXPECT_EQ(print(entry->storage), "{dp: R, fsdp: S(0@1), tp: S(0@0)}");
    EXPECT_EQ(print(*entry->compute), "{dp: R, fsdp: R, tp: S(0)}");
    EXPECT_EQ(entry->kept, sharding == Sharding::kParameters ? std::nullopt : entry->compute);
    EXPECT_EQ((*entry->gradient)[0], layout::Partial());
    EXPECT_EQ((*entry->gradient)[1].is_partial(), sharding == Sharding::kState);
    EXPECT_EQ(entry->compute_dtype, at::kBFloat16);
    std::map<std::string, std::vector<int64_t>> sizes;
    for (const NamedTensor& named : tensors_of(wrapped_model())) {
      sizes[named.name] = named.tensor.sizes().vec();
    }
    plan.verify(sizes);
  }
}

TEST(Adapters, StandForTheFeaturesOfTheirLayer) {
  const auto dims_of = [](const ModuleTree& module) {
    std::vector<std::map<int64_t, int64_t>> all;
    for (const AdapterInfo& adapter : find_adapters(group("", {module}))) {
      all.push_back(adapter.dims);
    }
    return all;
  };
  using Dims = std::map<int64_t, int64_t>;
  EXPECT_EQ(dims_of(wrapped(linear("a", 8, 32), 8, 32)), (std::vector<Dims>{{{1, 1}}, {{0, 0}}, {{0, 0}}}));
  EXPECT_EQ(dims_of(wrapped(linear("a", 8, 8), 8, 8)), (std::vector<Dims>{{{1, 1}}, {{0, 0}}, {{0, 0}}}));
  EXPECT_EQ(dims_of(wrapped(linear("a", 8, 32, ModuleTree::Kind::kTransposedLinear), 8, 32)),
            (std::vector<Dims>{{{0, 1}}, {{1, 0}}, {{1, 0}}}));
  EXPECT_EQ(dims_of(linear("a", 8, 32)), std::vector<Dims>{});
}

TEST(Adapters, NamesFromBefore) {
  EXPECT_EQ(name_before_wrapping("base_model.model.layers.0.up.base_layer.weight"), "layers.0.up.weight");
  EXPECT_EQ(name_before_wrapping("layers.0.base_layers.weight"), "layers.0.base_layers.weight");
}

}  // namespace
}  // namespace tessera::plan::adapters_test
