// Every pair of placements, run on every rank.
#include <random>

#include <gtest/gtest.h>

#include "tests/support/layouts.h"
#include "tests/unit/layout/random_layout.h"
#include "tests/unit/reshard/simulate.h"

namespace tessera::reshard::simulate_test {
namespace {

using layout::On;
using layout::Partial;
using layout::ReduceOp;
using layout::Replicate;
using layout::Shard;
using support::every_layout;
using Sizes = std::vector<int64_t>;

constexpr auto kDouble = c10::ScalarType::Double;

const std::vector<Sizes> kShapes = {{8, 6}, {7, 5}, {1, 3}, {2, 1}, {0, 4}, {3, 0}, {11}, {}};

std::vector<Placement> choices() {
  return {Replicate(),
          Shard(0),
          Shard(1),
          Shard(0, {.unit = 2}),
          Partial(),
          Partial(ReduceOp::kMax),
          Partial(ReduceOp::kMin),
          Partial(ReduceOp::kProd),
          Partial(ReduceOp::kAvg),
          On(0),
          On(1)};
}

void expect_path_works(const Spec& from, const Spec& to) {
  const Path path = plan_path(from, to);
  const auto values = element_values(from->sizes);
  EXPECT_EQ(path.steps.empty() ? from : path.steps.back().after, to);
  for (size_t i = 0; i < path.steps.size(); ++i) {
    EXPECT_EQ(path.steps[i].before, i == 0 ? from : path.steps[i - 1].after);
  }
  expect_holds(to, values, run_path(path, spread(from, values)));
  EXPECT_NEAR(cost_bytes(from, to), path.bytes, 1e-9 * path.bytes);
  if (testing::Test::HasFailure()) {
    FAIL() << from.str() << " -> " << to.str() << " on mesh " << from->mesh.str() << ": " << path.str();
  }
}

void expect_all_pairs_work(const Mesh& mesh, const Sizes& sizes) {
  const auto layouts = every_layout(mesh, static_cast<int64_t>(sizes.size()), choices());
  for (const Placements& from : layouts) {
    for (const Placements& to : layouts) {
      ASSERT_NO_FATAL_FAILURE(
          expect_path_works(Spec::contiguous(mesh, from, sizes, kDouble), Spec::contiguous(mesh, to, sizes, kDouble)));
    }
  }
}

class AllPairs : public testing::TestWithParam<const char*> {};

TEST_P(AllPairs, AreRight) {
  const Mesh mesh = Mesh::parse(GetParam());
  for (const Sizes& sizes : kShapes) {
    ASSERT_NO_FATAL_FAILURE(expect_all_pairs_work(mesh, sizes));
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, AllPairs,
                         testing::Values("1", "x=1", "x=2", "x=3", "x=4", "a=2,b=2", "a=2,b=3", "a=3,b=1"));

Spec random_spec(layout::RandomLayouts& random, const Mesh& mesh, const Sizes& sizes) {
  const Placements even = random.placements(mesh, static_cast<int64_t>(sizes.size()), true);
  return Spec::contiguous(mesh, random.number(0, 1) == 0 ? even : random.with_ragged_cuts(mesh, even, sizes), sizes,
                          kDouble);
}

TEST(RandomPairs, OnThreeAxesAreRight) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  for (int i = 0; i < 1500; ++i) {
    const Mesh plain = random.mesh(3, 3);
    const Mesh mesh(plain.axes(), random.permutation(plain.size()));
    const Sizes sizes = random.sizes(3, 9);
    ASSERT_NO_FATAL_FAILURE(expect_path_works(random_spec(random, mesh, sizes), random_spec(random, mesh, sizes)));
  }
}

TEST(OtherMeshes, FlattenedAndPermutedAreRight) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  const std::vector<std::vector<Mesh>> families = {
      {Mesh::parse("a=2,b=2"), Mesh::parse("x=4"), Mesh({{"x", 4}}, {2, 0, 3, 1}), Mesh::parse("c=2,d=1,e=2"),
       Mesh::parse("a=2,b=2").flatten({"b", "a"}, "x")},
      {Mesh::parse("a=2,b=3"), Mesh::parse("x=6"), Mesh::parse("a=3,b=2"),
       Mesh::parse("a=2,b=3").flatten({"b", "a"}, "x")}};
  for (const auto& family : families) {
    for (const Mesh& from : family) {
      for (const Mesh& to : family) {
        for (int i = 0; i < 80; ++i) {
          const Sizes sizes = random.sizes(2, 13);
          ASSERT_NO_FATAL_FAILURE(expect_path_works(random_spec(random, from, sizes), random_spec(random, to, sizes)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::reshard::simulate_test
