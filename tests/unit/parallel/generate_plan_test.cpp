#include "tessera/parallel/generate_plan.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/models/llama.h"

namespace tessera::parallel::generate_plan_test {
namespace {

// A rank that sums exactly has said its lattice: the plan takes it, and another one is refused.
TEST(GeneratePlan, TakesTheLatticeOfTheRank) {
  models::Llama model(models::LlamaConfig{.dim = 48, .layers = 1, .heads = 6, .kv_heads = 6, .hidden = 100});
  const sums::Lattice lattice{.feature = 4};
  const plan::PlanOptions wanted{.mesh = layout::Mesh::parse("tp=2"), .heads = 6, .kv_heads = 6};
  auto options = wanted;
  const auto fast = generate_plan(*model, options);
  options.lattice = lattice;
  const auto told = generate_plan(*model, options);
  EXPECT_NE(told, fast);
  comm::run_fake(2, 0, [&] {
    dtensor::set_numerics(dtensor::Numerics::kExact, lattice);
    EXPECT_EQ(generate_plan(*model, wanted), told);
    EXPECT_EQ(generate_plan(*model, options), told);
    options.lattice = sums::Lattice{.feature = 8};
    EXPECT_THROW(generate_plan(*model, options), PlanError);
    dtensor::set_numerics(dtensor::Numerics::kFast);
    EXPECT_EQ(generate_plan(*model, wanted), fast);
  });
}

}  // namespace
}  // namespace tessera::parallel::generate_plan_test
