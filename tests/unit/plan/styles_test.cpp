// What a style of parallelism may count on.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/plan/draft.h"
#include "tessera/plan/plan_model.h"

namespace tessera::plan::styles_test {
namespace {

ModuleTree linear(const std::string& name, int64_t in, int64_t out) {
  ModuleTree tree;
  tree.name = name;
  tree.kind = ModuleTree::Kind::kLinear;
  tree.weight = at::empty({out, in});
  tree.parameters = {{"weight", tree.weight}};
  return tree;
}

// Two layers of a width of 8, and a head.
ModuleTree model() {
  ModuleTree layers, all;
  layers.name = "layers";
  layers.kind = ModuleTree::Kind::kChain;
  for (const char* name : {"0", "1"}) {
    ModuleTree layer;
    layer.name = name;
    layer.children = {linear("up", 8, 32), linear("down", 32, 8)};
    layers.children.push_back(layer);
  }
  all.children = {layers, linear("head", 8, 64)};
  return all;
}

std::string patterns(const Plan& plan) {
  return base::join(plan.parameters, " ", [](std::ostream& out, const ParameterPlan& entry) { out << entry.pattern; });
}

TEST(Draft, EntriesAreWholeUntilAStyleSaysOtherwise) {
  const ModuleTree tree = model();
  Draft draft(tree, {}, layout::Mesh::parse("dp=2,tp=2"));
  EXPECT_EQ(draft.entry("head.weight").storage, layout::Placements(2));
  draft.entry("head.weight").storage[0] = layout::Shard(0);
  draft.entry("head.weight").storage[1] = layout::Shard(1);  // by another style
  const Plan plan = draft.finish();
  ASSERT_EQ(plan.parameters.size(), 1u);
  EXPECT_EQ(layout::str(plan.mesh, plan.parameters[0].storage), "{dp: S(0), tp: S(1)}");
}

TEST(Draft, EntriesStandInTheOrderOfRoles) {
  const ModuleTree tree = model();
  Draft draft(tree, {}, layout::Mesh::parse("tp=2"));
  for (const char* name : {"head", "layers.1.down", "layers.1.up", "layers.0.down"}) {
    draft.entry(std::string(name) + ".weight").storage[0] = layout::Shard(0);
  }
  draft.entry("layers.0.up.weight").storage[0] = layout::Shard(1);  // unlike that of the other layer
  EXPECT_EQ(patterns(draft.finish()), "layers.0.up.weight layers.*.down.weight layers.1.up.weight head.weight");
}

TEST(Draft, APatternForAllLayersMeansTheSameInEach) {
  const ModuleTree tree = model();
  Draft draft(tree, {}, layout::Mesh::parse("tp=2"));
  draft.entry("layers.1.up.weight").storage[0] = layout::Shard(0);
  draft.entry("layers.0.down.weight").output = layout::Placements(1);
  draft.entry("layers.1.down.weight").input = layout::Placements(1);
  EXPECT_EQ(patterns(draft.finish()), "layers.0.down.weight layers.1.up.weight layers.1.down.weight");
}

TEST(Draft, SaysAThingOnceAndKnowsTheAxesThatCut) {
  const ModuleTree tree = model();
  Draft draft(tree, {}, layout::Mesh::parse("dp=3,tp=1"));
  draft.note("uneven");
  draft.note("uneven");
  EXPECT_EQ(draft.plan.notes, std::vector<std::string>{"uneven"});
  EXPECT_EQ(draft.wide_axis(layout::AxisRole::kData), 0);
  EXPECT_EQ(draft.wide_axis(layout::AxisRole::kTensor), std::nullopt);
}

TEST(Styles, EachWritesWhatIsItsOwn) {
  const ModuleTree tree = model();
  const auto of = [&](const char* mesh, bool sequence_parallel) {
    return plan_model(tree, {.mesh = layout::Mesh::parse(mesh), .sequence_parallel = sequence_parallel});
  };
  const Plan data = of("dp=2", true);
  EXPECT_EQ(data.batch_axes, std::vector<std::string>{"dp"});
  EXPECT_TRUE(data.parameters.empty());
  const Plan tensor = of("dp=2,tp=2", false), sequence = of("dp=2,tp=2", true);
  EXPECT_EQ(patterns(tensor), "layers.*.up.weight layers.*.down.weight head.weight");
  EXPECT_EQ(patterns(sequence), patterns(tensor));
  for (size_t i = 0; i < tensor.parameters.size(); ++i) {
    EXPECT_EQ(tensor.parameters[i].storage, sequence.parameters[i].storage);
    EXPECT_FALSE(tensor.parameters[i].output);
  }
  ASSERT_TRUE(sequence.parameters[1].output);
  EXPECT_EQ(layout::str(sequence.mesh, *sequence.parameters[1].output), "{dp: S(0), tp: S(1)}");
}

}  // namespace
}  // namespace tessera::plan::styles_test
