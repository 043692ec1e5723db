// Moves from and to cuts at given places: the steps, and their bytes in closed form.
#include <gtest/gtest.h>

#include "tessera/reshard/path.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::reshard::ragged_test {
namespace {

constexpr auto kFloat = c10::ScalarType::Float;
constexpr double kRow = 4 * 4;  // bytes of a row of the tensors below
using Sizes = std::vector<int64_t>;

Path path_of(const char* mesh, const std::string& from, const std::string& to, const Sizes& sizes) {
  const Mesh m = Mesh::parse(mesh);
  return plan_path(Spec::contiguous(m, layout::parse_placements(m, from), sizes, kFloat),
                   Spec::contiguous(m, layout::parse_placements(m, to), sizes, kFloat));
}

// Of 8 rows on 3 ranks.
void expect_step(const std::string& from, const std::string& to, const std::string& step, double bytes_of_all_ranks) {
  const Path path = path_of("x=3", "{x: " + from + "}", "{x: " + to + "}", {8, 4});
  EXPECT_EQ(path.str(), step + " x: " + from + " -> " + to);
  EXPECT_NEAR(3 * path.bytes, bytes_of_all_ranks, 1e-9) << path.str();
}

TEST(RaggedMoves, AreOneStepOnOneAxis) {
  expect_step("S(0|3,0,5)", "R", "all_gather", 2 * 8 * kRow);
  expect_step("R", "S(0|3,0,5)", "slice", 0);
  expect_step("P", "S(0|3,0,5)", "reduce_scatter", 2 * 8 * kRow);
  expect_step("S(0|3,0,5)", "P", "pad", 0);
  expect_step("S(0|3,0,5)", "S(0|2*3,2)", "all_to_all", 3 * kRow);
  expect_step("S(0|8,2*0)", "S(0|2*0,8)", "all_to_all", 8 * kRow);
  expect_step("S(0)", "S(0|3,0,5)", "all_to_all", 3 * kRow);
  expect_step("S(0|2*3,2)", "S(0)", "relabel", 0);
  // Two of four columns each to the first two ranks: they keep 3 rows and none of them.
  expect_step("S(0|3,0,5)", "S(1)", "all_to_all", 8 * kRow - 3 * kRow / 2);
  expect_step("S(1|0,1,3)", "S(0|3,0,5)", "all_to_all", 8 * kRow - 5 * kRow * 3 / 4);
}

// A matrix that one rank works on: nothing moves where all of its rows are there.
TEST(RaggedMoves, ToAnOwnerSendWhatItLacks) {
  expect_step("S(0|3,0,5)", "On(2)", "gather", 3 * kRow);
  expect_step("S(0|3,0,5)", "On(1)", "gather", 8 * kRow);
  expect_step("S(0|0,8,0)", "On(1)", "gather", 0);
  expect_step("On(2)", "S(0|3,0,5)", "scatter", 3 * kRow);
  expect_step("On(1)", "S(0|0,8,0)", "scatter", 0);
}

TEST(RaggedMoves, InsideOfASlowerCut) {
  const auto path = [](const char* from, const char* to) { return path_of("fsdp=3,tp=2", from, to, {8, 4}).str(); };
  EXPECT_EQ(path("{fsdp: S(0|3,0,1@1), tp: S(0@0)}", "{tp: S(0)}"), "all_gather fsdp: S(0|3,0,1@1) -> R");
  EXPECT_EQ(path("{tp: S(0)}", "{fsdp: S(0|3,0,1@1), tp: S(0@0)}"), "slice fsdp: R -> S(0|3,0,1@1)");
  EXPECT_EQ(path("{fsdp: P, tp: S(0)}", "{fsdp: S(0|3,0,1@1), tp: S(0@0)}"), "reduce_scatter fsdp: P -> S(0|3,0,1@1)");
  // What does not fit the run of the whole dim waits until the slower axis cuts it.
  EXPECT_EQ(path("{tp: P}", "{fsdp: S(0|3,0,1@1), tp: S(0@0)}"),
            "reduce_scatter tp: P -> S(0); slice fsdp: R -> S(0|3,0,1@1)");
}

// Cuts alone: no chain sends less than what ranks lack, and one of one axis sends just that.
TEST(RaggedMoves, SendWhatIsMissing) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  for (int i = 0; i < 500; ++i) {
    const Mesh mesh = Mesh::parse(i % 2 == 0 ? "x=3" : "x=4");
    const Sizes sizes = {random.number(1, 20), random.number(1, 20)};
    const auto draw = [&] {
      const Placements even = {random.number(0, 2) == 0 ? layout::Replicate() : layout::Shard(random.number(0, 1))};
      return Spec::contiguous(mesh, random.with_ragged_cuts(mesh, even, sizes), sizes, kFloat);
    };
    const Spec from = draw(), to = draw();
    const double missing = 4.0 * static_cast<double>(Exchange(Holdings(from), Holdings(to)).moved());
    const Path path = plan_path(from, to);
    EXPECT_NEAR(path.bytes * static_cast<double>(mesh.size()), missing, 1e-6)
        << from.str() << " " << to.str() << " " << path.str();
    EXPECT_NEAR(cost_bytes(from, to->placements), path.bytes, 1e-6);
  }
}

TEST(RaggedMoves, CostsAreInfiniteWhereTheSizesDoNotFit) {
  const Mesh mesh = Mesh::parse("x=3");
  const Spec from = Spec::contiguous(mesh, {layout::Replicate()}, {8, 4}, kFloat);
  EXPECT_TRUE(std::isinf(cost_bytes(from, {layout::RaggedShard({0}, {3, 0, 4})})));
  EXPECT_EQ(cost_bytes(from, {layout::RaggedShard({0}, {3, 0, 5})}), 0);
}

}  // namespace
}  // namespace tessera::reshard::ragged_test
