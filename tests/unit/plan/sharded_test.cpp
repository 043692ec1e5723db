// The four layouts of a parameter in plans, and what fsdp axes make of them.
#include <random>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/plan/groups.h"
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

// A rank has a run of all rows of a group end to end: 72 of 288 elements, of 264 elements 64, 64, 64 and 72.
TEST(Sharded, RowsOfEveryParameterAreCut) {
  const Plan plan = plan_of("fsdp=4");
  EXPECT_EQ(plan.batch_axes, std::vector<std::string>{"fsdp"});
  const auto expect_rows = [&](const char* name, const std::string& rows) {
    EXPECT_EQ(text(plan, name), "{fsdp: S(0|" + rows + ")} {} - {fsdp: S(0|" + rows + ")}") << name;
  };
  expect_rows("up.weight", "3*9,5");
  expect_rows("up.bias", "3*0,32");
  expect_rows("down.weight", "4*2");
  expect_rows("down.bias", "3*0,8");
  EXPECT_EQ(plan.find("up.bias")->group, "up");
  EXPECT_EQ(plan.find("scale"), nullptr);
  EXPECT_EQ(plan.notes, std::vector<std::string>{"scale stays whole: it has no rows"});
}

TEST(Sharded, WordsSayWhatIsKeptInParts) {
  EXPECT_EQ(text(plan_of("fsdp=4", Sharding::kGradients), "up.weight"), "{fsdp: S(0|3*9,5)} {} {} {fsdp: S(0|3*9,5)}");
  EXPECT_EQ(text(plan_of("fsdp=4", Sharding::kState), "up.weight"), "{fsdp: S(0|3*9,5)} {} {} {fsdp: P}");
  EXPECT_EQ(text(plan_of("dp_shard=3,fsdp=4", Sharding::kSecondary), "up.weight"),
            "{dp_shard: S(0@1), fsdp: S(0@0)} {} {fsdp: S(0)} {dp_shard: S(0@1), fsdp: S(0@0)}");
  EXPECT_THROW(plan_of("fsdp=4", Sharding::kSecondary), PlanError);
  for (const Sharding each : {Sharding::kState, Sharding::kGradients, Sharding::kParameters, Sharding::kSecondary}) {
    EXPECT_EQ(parse_sharding(name_of(each)), each);
  }
  EXPECT_THROW(parse_sharding("zero3"), PlanError);
}

ModuleTree layers() {
  ModuleTree chain, all;
  chain.name = "layers";
  chain.kind = ModuleTree::Kind::kChain;
  for (const char* name : {"0", "1", "2"}) {
    ModuleTree layer;
    layer.name = name;
    layer.children = {linear("up", 8, 32), linear("down", 32, 8)};
    chain.children.push_back(layer);
  }
  all.children = {linear("in", 8, 8), chain, linear("out", 8, 8)};
  all.children[2].parameters[0].second = all.children[0].weight;  // tied
  return all;
}

// The innermost module that the options name; others by layers and modules, as without a word.
TEST(Sharded, OptionsNameGroups) {
  const Plan plan = plan_model(
      layers(), {.mesh = layout::Mesh::parse("fsdp=2"),
                 .precision = {.compute = at::kHalf},
                 .groups = {{"layers.*", Sharding::kGradients, {.compute = at::kBFloat16}}, {"layers.1.down"}, {"out"}},
                 .whole = {"layers.2.up.bias"}});
  const auto expect = [&](const char* name, const std::string& group, bool is_kept,
                          std::optional<at::ScalarType> dtype) {
    const ParameterPlan& entry = *plan.find(name);
    EXPECT_EQ(plan.group_of(name), group) << name;
    EXPECT_EQ(entry.kept.has_value(), is_kept) << name;
    EXPECT_EQ(entry.compute_dtype, dtype) << name;
  };
  expect("layers.0.up.weight", "layers.0", true, at::kBFloat16);
  expect("layers.1.up.weight", "layers.1", true, at::kBFloat16);
  expect("layers.1.down.weight", "layers.1.down", false, std::nullopt);
  expect("out.bias", "out", false, std::nullopt);
  expect("in.bias", "in", false, at::kHalf);
  expect("in.weight", "", false, std::nullopt);  // tied: in the group of `out` by its other name
  EXPECT_TRUE(plan.find("in.weight")->storage[0].is_shard());
  EXPECT_EQ(plan.find("layers.2.up.bias"), nullptr);
}

TEST(Sharded, RowsOfATensorParallelPartAreCut) {
  const Plan plan = plan_of("dp_shard=2,tp=2");
  EXPECT_EQ(text(plan, "up.weight"),
            "{dp_shard: S(0|9,7@1), tp: S(0@0)} {tp: S(0)} - {dp_shard: S(0|9,7@1), tp: S(0@0)}");
  EXPECT_EQ(text(plan, "down.weight"), "{dp_shard: S(0|2*4), tp: S(1)} {tp: S(1)} - {dp_shard: S(0|2*4), tp: S(1)}");
}

TEST(Sharded, ReplicasMergeOnceAStep) {
  const Plan plan = plan_of("fsdp=2,dp=3");
  EXPECT_EQ(plan.batch_axes, (std::vector<std::string>{"dp", "fsdp"}));  // those that share a copy are neighbours
  EXPECT_EQ(text(plan, "up.weight"), "{fsdp: S(0|18,14)} {} - {fsdp: S(0|18,14), dp: P}");
}

// Experts of few rows are dealt out by the rows of all of them; not in `exact`, and not where tp cuts one of these
// dims.
TEST(Sharded, FewRowsAreThoseOfTheFirstDimsTogether) {
  ModuleTree tree;
  tree.children = {ModuleTree()};
  tree.children[0].name = "experts";
  tree.children[0].parameters = {
      {"few", at::empty({4, 30, 5})}, {"many", at::empty({64, 3, 5})}, {"two", at::empty({2, 2, 2, 3})}};
  const auto storage = [&](const PlanOptions& options) {
    const Plan plan = plan_model(tree, options);
    std::string all;
    for (const char* name : {"experts.few", "experts.many", "experts.two"}) {
      all += layout::short_str(plan.mesh, plan.find(name)->storage);
    }
    return all;
  };
  const layout::Mesh mesh = layout::Mesh::parse("fsdp=4");
  EXPECT_EQ(storage({.mesh = mesh}), "{fsdp: S(0-1|79,41,2*0)}{fsdp: S(0|0,13,26,25)}{fsdp: S(0-2|3*0,8)}");
  EXPECT_EQ(storage({.mesh = mesh, .lattice = sums::Lattice()}).find('-'), std::string::npos);
}

// Two rows on three ranks: one has none of them.
TEST(Sharded, WhatWholeRowsWasteIsNoted) {
  ModuleTree tree;
  tree.children = {linear("up", 64, 2)};
  const auto notes = plan_model(tree, {.mesh = layout::Mesh::parse("fsdp=3")}).notes;
  EXPECT_EQ(notes, std::vector<std::string>{"rows stay whole: of what fsdp=3 shards in groups the rank that keeps most "
                                            "has 52% more than an equal share"});
  EXPECT_TRUE(plan_model(tree, {.mesh = layout::Mesh::parse("fsdp=2")}).notes.empty());
}

TEST(Sharded, AGroupIsCutIntoOneRunARank) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  for (int i = 0; i < 2000; ++i) {
    std::vector<GroupMember> members(static_cast<size_t>(1 + below(6)));
    int64_t all = 0, longest = 0;
    for (GroupMember& member : members) {
      member = {below(40), below(4) == 0 ? 1 : below(30)};
      all += member.rows * member.columns;
      longest = std::max(longest, member.columns);
    }
    const int64_t parts = 1 + below(9);
    const auto rows = cut_group(members, parts);
    std::vector<int64_t> taken(members.size());
    size_t at = 0;  // the member whose rows come next
    for (int64_t part = 0; part < parts; ++part) {
      int64_t own = 0;
      for (size_t m = 0; m < members.size(); ++m) {
        const int64_t count = rows[m][static_cast<size_t>(part)];
        own += count * members[m].columns;
        taken[m] += count;
        if (count * members[m].columns > 0) {
          for (; at < m; ++at) {  // nothing of those before it is left
            ASSERT_TRUE(taken[at] == members[at].rows || members[at].columns == 0) << "part " << part;
          }
          ASSERT_EQ(at, m);
        }
      }
      ASSERT_LE(own, all / parts + longest) << "part " << part << " of " << parts;
    }
    for (size_t m = 0; m < members.size(); ++m) {
      ASSERT_EQ(taken[m], members[m].rows);
    }
  }
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
