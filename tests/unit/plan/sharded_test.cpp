// The four layouts of a parameter in plans, and what fsdp axes make of them.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/plan/plan_model.h"

namespace tessera::plan::sharded_test {
namespace {

ModuleTree linear(const std::string& name, int64_t in, int64_t out) {
  ModuleTree tree;
  tree.name = name;
  tree.kind = ModuleTree::Kind::kLinear;
  tree.weight = at::empty({out, in});
  tree.bias = at::empty({out});
  tree.parameters = {{"weight", tree.weight}, {"bias", tree.bias}};
  return tree;
}

// Two products, and a parameter that is a number.
ModuleTree model() {
  ModuleTree all;
  all.children = {linear("up", 8, 32), linear("down", 32, 8)};
  all.parameters = {{"scale", at::empty({})}};
  return all;
}

Plan plan_of(const char* mesh, Sharding sharding = Sharding::kParameters) {
  return plan_model(model(), {.mesh = layout::Mesh::parse(mesh), .sharding = sharding});
}

std::string text(const Plan& plan, const std::string& name) {
  const ParameterPlan& entry = *plan.find(name);
  const auto of = [&](const std::optional<layout::Placements>& state) {
    return state ? layout::short_str(plan.mesh, *state) : "-";
  };
  return layout::short_str(plan.mesh, entry.storage) + " " + of(entry.compute) + " " + of(entry.kept) + " " +
         of(entry.gradient);
}

TEST(Sharded, RowsOfEveryParameterAreCut) {
  const Plan plan = plan_of("fsdp=4");
  EXPECT_EQ(plan.batch_axes, std::vector<std::string>{"fsdp"});
  for (const char* name : {"up.weight", "up.bias", "down.weight", "down.bias"}) {
    EXPECT_EQ(text(plan, name), "{fsdp: S(0)} {} - {fsdp: S(0)}") << name;
  }
  EXPECT_EQ(plan.find("scale"), nullptr);
  EXPECT_EQ(plan.notes, std::vector<std::string>{"scale stays whole: it has no rows"});
}

TEST(Sharded, WordsSayWhatIsKeptInParts) {
  EXPECT_EQ(text(plan_of("fsdp=4", Sharding::kGradients), "up.weight"), "{fsdp: S(0)} {} {} {fsdp: S(0)}");
  EXPECT_EQ(text(plan_of("fsdp=4", Sharding::kState), "up.weight"), "{fsdp: S(0)} {} {} {fsdp: P}");
  for (const Sharding each : {Sharding::kState, Sharding::kGradients, Sharding::kParameters}) {
    EXPECT_EQ(parse_sharding(name_of(each)), each);
  }
  EXPECT_THROW(parse_sharding("zero3"), PlanError);
}

TEST(Sharded, RowsOfATensorParallelPartAreCut) {
  const Plan plan = plan_of("dp_shard=2,tp=2");
  EXPECT_EQ(text(plan, "up.weight"), "{dp_shard: S(0@1), tp: S(0@0)} {tp: S(0)} - {dp_shard: S(0@1), tp: S(0@0)}");
  EXPECT_EQ(text(plan, "down.weight"), "{dp_shard: S(0), tp: S(1)} {tp: S(1)} - {dp_shard: S(0), tp: S(1)}");
}

TEST(Sharded, ReplicasMergeOnceAStep) {
  const Plan plan = plan_of("fsdp=2,dp=3");
  EXPECT_EQ(plan.batch_axes, (std::vector<std::string>{"dp", "fsdp"}));  // those that share a copy are neighbours
  EXPECT_EQ(text(plan, "up.weight"), "{fsdp: S(0)} {} - {fsdp: S(0), dp: P}");
}

// What `verify` says of a plan whose only entry has these layouts.
std::string refusal(const char* storage, const char* compute, const char* kept, const char* gradient) {
  Plan plan;
  plan.mesh = layout::Mesh::parse("dp=2,fsdp=2");
  plan.batch_axes = {"dp", "fsdp"};
  const auto of = [&](const char* placements) {
    return *placements ? std::optional(layout::parse_placements(plan.mesh, placements)) : std::nullopt;
  };
  plan.parameters = {{"w", *of(storage), {}, {}, of(compute), of(kept), of(gradient)}};
  try {
    plan.verify({{"w", {8, 8}}});
  } catch (const PlanError& error) {
    return base::message_of(error);
  }
  return "";
}

TEST(Sharded, LayoutsThatDoNotFitEachOtherAreRefused) {
  EXPECT_EQ(refusal("{fsdp: S(0)}", "{}", "{}", "{dp: P, fsdp: S(0)}"), "");
  EXPECT_EQ(refusal("{dp: S(1), fsdp: S(0)}", "{}", "{dp: S(1)}", "{dp: P, fsdp: P}"), "");  // a secondary shard
  EXPECT_EQ(refusal("{fsdp: S(0)}", "{fsdp: S(1)}", "", ""),
            "[plan] the compute of \"w\" is {dp: R, fsdp: S(1)}, and its storage {dp: R, fsdp: S(0)}; accepted on each "
            "axis: as in storage, or R, where it is gathered");
  EXPECT_NE(refusal("{fsdp: S(0)}", "", "{}", "").find("or as in compute"), std::string::npos);
  EXPECT_NE(refusal("{fsdp: S(0)}", "{}", "", "{}").find("or P, which is merged once a step"), std::string::npos);
}

}  // namespace
}  // namespace tessera::plan::sharded_test
