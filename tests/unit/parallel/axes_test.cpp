// Every axis of a plan has a role by its name, by whatever entrance the plan comes.
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/parallel/forward_pass.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"
#include "tests/support/axis_names.h"

namespace tessera::parallel::axes_test {
namespace {

layout::Mesh mesh_of(const std::string& axis) { return layout::Mesh({{axis, 2}}); }

plan::Plan plan_on(const std::string& axis) {
  plan::Plan plan;
  plan.mesh = mesh_of(axis);
  return plan;
}

struct Entrance {
  const char* name;
  std::function<void(const std::string& axis)> enter;
};

const std::vector<Entrance>& entrances() {
  static const std::vector<Entrance> all = {
      {"generate_plan",
       [](const std::string& axis) { generate_plan(*torch::nn::Linear(4, 4), {.mesh = mesh_of(axis)}); }},
      {"a plan file", [](const std::string& axis) { plan::Plan::from_json(plan_on(axis).json()); }},
      {"a plan by hand", [](const std::string& axis) { plan_on(axis).verify({}); }},
      {"parallelize",
       [](const std::string& axis) {
         comm::run_fake(2, 0, [&] {
           torch::nn::Linear model(4, 4);
           torch::optim::SGD optimizer(model->parameters(), 0.1);
           parallelize(model, plan_on(axis), optimizer);
         });
       }},
      {"parallelize without an optimizer",
       [](const std::string& axis) {
         comm::run_fake(2, 0, [&] {
           torch::nn::Linear model(4, 4);
           parallelize(model, plan_on(axis), {.accumulate = 2});
         });
       }},
      {"a job of one's own", [](const std::string& axis) { Job(torch::nn::Linear(4, 4).ptr(), plan_on(axis), {}); }},
      {"forward passes", [](const std::string& axis) { ForwardPasses passes(plan_on(axis)); }},
  };
  return all;
}

std::string error_of(const Entrance& entrance, const std::string& axis) {
  try {
    entrance.enter(axis);
  } catch (const PlanError& error) {
    return base::message_of(error);
  }
  return "none";
}

TEST(Axes, FortyNamesHaveARoleOrAreRefusedAtEveryEntrance) {
  ASSERT_GE(support::axis_names().size(), 40u);
  for (const auto& entrance : entrances()) {
    for (const auto& [name, has_role] : support::axis_names()) {
      const auto error = error_of(entrance, name);
      EXPECT_EQ(error == "none", has_role) << entrance.name << ": " << error;
      EXPECT_EQ(error.find(support::kAcceptedAxes) != std::string::npos, !has_role) << entrance.name << ": " << error;
    }
  }
}

TEST(Axes, OnlyDataAxesCutTheBatch) {
  EXPECT_EQ(
      generate_plan(*torch::nn::Linear(4, 4), {.mesh = layout::Mesh::parse("dp_replicate=2,tp=2,dp=2")}).batch_axes,
      (std::vector<std::string>{"dp_replicate", "dp"}));
  plan::Plan plan = plan_on("tp");
  plan.batch_axes = {"tp"};
  try {
    plan.verify({});
    ADD_FAILURE() << "accepted";
  } catch (const PlanError& error) {
    EXPECT_EQ(base::message_of(error),
              "[plan] batch axis \"tp\" has another role in mesh {tp=2}; accepted: axes of the mesh that cut the "
              "batch, of which it has none");
  }
}

}  // namespace
}  // namespace tessera::parallel::axes_test
