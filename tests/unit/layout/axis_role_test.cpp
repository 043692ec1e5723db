#include "tessera/layout/axis_role.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::layout::axis_role_test {
namespace {

std::string refusal_of(const char* mesh) {
  try {
    verify_roles(Mesh::parse(mesh));
  } catch (const PlanError& error) {
    return base::message_of(error);
  }
  return "none";
}

TEST(AxisRole, NamesSayWhatAxesAreFor) {
  const auto mesh = Mesh::parse("dp_replicate=2,tp=2,dp=3");
  EXPECT_EQ(role_of(mesh, 0), AxisRole::kData);
  EXPECT_EQ(role_of(mesh, 1), AxisRole::kTensor);
  EXPECT_EQ(axes_of(mesh, AxisRole::kData), (std::vector<std::string>{"dp_replicate", "dp"}));
  EXPECT_EQ(axes_of(mesh, AxisRole::kTensor), std::vector<std::string>{"tp"});
  EXPECT_TRUE(axes_of(Mesh(), AxisRole::kData).empty());
  const auto sharded = Mesh::parse("fsdp=2,dp=3,tp=2");
  EXPECT_EQ(role_of(sharded, 0), AxisRole::kSharded);
  EXPECT_EQ(batch_axes_of(sharded), (std::vector<std::string>{"dp", "fsdp"}));
  EXPECT_EQ(name_of(AxisRole::kData), "dp");
  EXPECT_EQ(name_of(AxisRole::kTensor), "tp");
  const auto stages = Mesh::parse("pp=2,dp=2");
  EXPECT_EQ(role_of(stages, 0), AxisRole::kPipeline);
  EXPECT_EQ(batch_axes_of(stages), std::vector<std::string>{"dp"});
  EXPECT_EQ(name_of(AxisRole::kPipeline), "pp");
}

TEST(AxisRole, ARefusalSaysWhyAndListsTheNames) {
  const std::string accepted =
      "; accepted: dp (cuts the batch), dp_replicate (the same as dp), fsdp (cuts the batch and what is kept of each "
      "parameter), dp_shard (the same as fsdp), tp (cuts the model), pp (cuts the model into stages)";
  EXPECT_EQ(refusal_of("dp=2,tp=2"), "none");
  EXPECT_EQ(refusal_of("dp=2,cp=2"),
            "[mesh] the axis \"cp\" of mesh {dp=2,cp=2}: context parallelism is not there yet" + accepted);
  EXPECT_EQ(refusal_of("ddp=2"),
            "[mesh] the axis \"ddp\" of mesh {ddp=2} has no role; did you mean \"dp\"?" + accepted);
  EXPECT_EQ(refusal_of("stage=1"), "[mesh] the axis \"stage\" of mesh {stage=1} has no role" + accepted);
}

}  // namespace
}  // namespace tessera::layout::axis_role_test
