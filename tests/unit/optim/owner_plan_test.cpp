#include "tessera/optim/owner_plan.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace tessera::optim::owner_plan_test {
namespace {

using layout::Mesh;
using layout::Spec;

Spec matrix(const Mesh& mesh, const char* placements, std::vector<int64_t> sizes) {
  return Spec::contiguous(mesh, layout::parse_placements(mesh, placements), sizes, at::kFloat);
}

std::vector<std::string> owners(const Mesh& mesh, const std::vector<Spec>& parameters, OwnedOver over) {
  std::vector<std::string> texts;
  for (const auto& placements : plan_owners(parameters, over)) {
    texts.push_back(layout::str(mesh, placements));
  }
  return texts;
}

TEST(OwnerPlan, CostsAreThoseOfNewtonSchulz) {
  EXPECT_EQ(step_cost({4, 6}), 4 * 16 * 6 + 2 * 64);
  EXPECT_EQ(step_cost({6, 4}), step_cost({4, 6}));
  EXPECT_EQ(step_cost({4, 3, 2}), step_cost({4, 6}));
  EXPECT_EQ(step_cost({9}), 9);
  EXPECT_EQ(step_cost({0, 3}), 0);
}

TEST(OwnerPlan, TheDearestComeFirstAndReplicasDoTheSame) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const std::vector<Spec> parameters = {
      matrix(mesh, "{tp: S(0)}", {4, 4}),            // to tp 1: the large one is at 0
      matrix(mesh, "{tp: S(1)}", {16, 16}),          // first
      matrix(mesh, "{}", {8, 8}),                    // no axis cuts it
      matrix(mesh, "{dp: S(0), tp: S(1)}", {2, 2}),  // the least loaded of four
  };
  EXPECT_EQ(owners(mesh, parameters, OwnedOver::kCuts),
            (std::vector<std::string>{"{dp: R, tp: On(1)}", "{dp: R, tp: On(0)}", "{dp: R, tp: R}",
                                      "{dp: On(0), tp: On(1)}"}));
  EXPECT_EQ(owners(mesh, parameters, OwnedOver::kMesh),
            (std::vector<std::string>{"{dp: On(1), tp: On(0)}", "{dp: On(0), tp: On(0)}", "{dp: On(0), tp: On(1)}",
                                      "{dp: On(1), tp: On(1)}"}));
  EXPECT_EQ(owners(Mesh::parse("tp=1"), {matrix(Mesh::parse("tp=1"), "{tp: S(0)}", {4, 4})}, OwnedOver::kMesh),
            std::vector<std::string>{"{tp: R}"});
  EXPECT_THROW(plan_owners({parameters[0], matrix(Mesh::parse("tp=2"), "{}", {2})}, OwnedOver::kCuts), c10::Error);
}

TEST(OwnerPlan, WhatIsWholeAtOnePlaceStaysThere) {
  const Mesh mesh = Mesh::parse("dp=2,tp=3");
  const std::vector<Spec> parameters = {
      matrix(mesh, "{tp: S(0)}", {16, 16}),  // the dearest, but not before those that have a place
      matrix(mesh, "{tp: On(0)}", {4, 4}),
      matrix(mesh, "{tp: S(0;8)}", {8, 4}),  // one unit: all rows are at the first
      matrix(mesh, "{dp: On(1), tp: On(2)}", {2, 2}),
  };
  EXPECT_EQ(owners(mesh, parameters, OwnedOver::kCuts),
            (std::vector<std::string>{"{dp: R, tp: On(1)}", "{dp: R, tp: On(0)}", "{dp: R, tp: On(0)}",
                                      "{dp: On(1), tp: On(2)}"}));
}

TEST(OwnerPlan, AStagesMatricesStayInTheStage) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const std::vector<Spec> parameters = {matrix(mesh, "{dp: On(1), tp: S(0)}", {8, 8}),
                                        matrix(mesh, "{dp: On(1), tp: S(0)}", {6, 6}),
                                        matrix(mesh, "{dp: On(1), tp: S(1)}", {4, 4})};
  for (const auto over : {OwnedOver::kCuts, OwnedOver::kMesh}) {
    EXPECT_EQ(owners(mesh, parameters, over),
              (std::vector<std::string>{"{dp: On(1), tp: On(0)}", "{dp: On(1), tp: On(1)}", "{dp: On(1), tp: On(1)}"}));
  }
}

// Longest processing time: no rank has more than 4/3 of the best, which is at least the mean and the dearest.
TEST(OwnerPlan, IsWithinGrahamsBound) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const Mesh mesh = Mesh::parse("fsdp=" + std::to_string(2 + random() % 7));
    std::vector<Spec> parameters;
    for (uint64_t i = 0; i < 1 + random() % 60; ++i) {
      parameters.push_back(matrix(mesh, "{fsdp: S(0)}",
                                  {static_cast<int64_t>(1 + random() % 64), static_cast<int64_t>(1 + random() % 64)}));
    }
    std::map<std::string, double> loads;
    double all = 0, dearest = 0, most = 0;
    const auto found = owners(mesh, parameters, OwnedOver::kCuts);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const double cost = step_cost(parameters[i]->sizes);
      most = std::max(most, loads[found[i]] += cost);
      all += cost, dearest = std::max(dearest, cost);
    }
    const auto ranks = static_cast<double>(mesh.size());
    EXPECT_LE(most, all / ranks + (1 - 1 / ranks) * dearest) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tessera::optim::owner_plan_test
