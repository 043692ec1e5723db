// Dtypes of parameters in plans.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/plan/plan_model.h"

namespace tessera::plan::precision_test {
namespace {

ModuleTree model() {
  ModuleTree tree;
  tree.name = "up";
  tree.kind = ModuleTree::Kind::kLinear;
  tree.weight = at::empty({32, 8});
  tree.bias = at::empty({32});
  tree.parameters = {{"weight", tree.weight}, {"bias", tree.bias}};
  ModuleTree all;
  all.children = {tree};
  all.parameters = {{"table", at::empty({4}, at::kLong)}};
  return all;
}

Plan plan_of(const char* mesh, Precision precision) {
  return plan_model(model(), {.mesh = layout::Mesh::parse(mesh), .precision = precision});
}

TEST(Precision, IsOfEveryFloatingParameter) {
  const Plan plan = plan_of("dp=2", {.storage = at::kFloat, .compute = at::kBFloat16, .reduce = at::kHalf});
  for (const char* name : {"up.weight", "up.bias"}) {
    const ParameterPlan& entry = *plan.find(name);
    EXPECT_EQ(entry.storage_dtype, at::kFloat);
    EXPECT_EQ(entry.compute_dtype, at::kBFloat16);
    EXPECT_EQ(entry.reduce_dtype, at::kHalf);
    EXPECT_EQ(entry.kept, entry.storage);  // cast once a step
  }
  EXPECT_EQ(plan.find("table"), nullptr);
  EXPECT_EQ(plan_of("dp=2", {}).parameters, std::vector<ParameterPlan>());
}

TEST(Precision, OfAFullyShardedParameterNothingIsKept) {
  EXPECT_EQ(plan_of("fsdp=2", {.compute = at::kBFloat16}).find("up.weight")->kept, std::nullopt);
}

TEST(Precision, IsWrittenAndRead) {
  const Plan plan = plan_of("fsdp=2", {.storage = at::kFloat, .compute = at::kBFloat16, .reduce = at::kDouble});
  const std::string text = plan.json();
  EXPECT_NE(text.find("\"storage_dtype\": \"float32\", \"compute_dtype\": \"bfloat16\", \"reduce_dtype\": \"float64\""),
            std::string::npos)
      << text;
  EXPECT_EQ(Plan::from_json(text), plan);
}

std::string error_of(const std::string& text) {
  try {
    Plan::from_json(text);
  } catch (const PlanError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Precision, WhatIsNoDtypeIsRefused) {
  std::string text = plan_of("dp=2", {.compute = at::kBFloat16}).json();
  text.replace(text.find("bfloat16"), 8, "bf16");
  const std::string error = error_of(text);
  EXPECT_NE(error.find("line 7: \"compute_dtype\" is \"bf16\"; accepted: float32, float64, bfloat16, float16"),
            std::string::npos)
      << error;
  EXPECT_EQ(parse_precision("", "", ""), Precision());
  EXPECT_EQ(parse_precision("float32", "bfloat16", ""), (Precision{.storage = at::kFloat, .compute = at::kBFloat16}));
  EXPECT_THROW(parse_precision("", "bflaot16", ""), PlanError);
}

}  // namespace
}  // namespace tessera::plan::precision_test
