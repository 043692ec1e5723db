// What is said of a lattice whose batch leaves do not fit how samples are dealt.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallel/forward_pass.h"
#include "tessera/parallel/job.h"
#include "tests/ranks/support.h"
#include "tests/support/heard_warnings.h"

namespace tessera::ranks::lattice_notes_test {
namespace {

struct Case {
  std::string mesh = "dp=4";
  int64_t samples = 16, leaves = 16;  // of a step
  int64_t passes = 1;                 // of a loop
  bool is_exact = true;
};

// What is said in three steps, by a loop or by a job.
std::vector<std::string> said_of(const Case& c, bool by_job) {
  support::HeardWarnings heard;
  const Mesh mesh = Mesh::parse(c.mesh);
  comm::run_ranks(mesh.size(), [&](int64_t) {
    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
    if (c.is_exact) {
      dtensor::set_numerics(Numerics::kExact, {.batch = c.leaves});
    }
    torch::nn::Linear model(4, 3);
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh});
    parallel::place(*model, plan);
    const auto loss_of = [&](const at::Tensor& x) { return model(x).square().mean(); };
    parallel::Job job(model.ptr(), plan, [&](const auto& batch) { return loss_of(batch[0]); });
    parallel::ForwardPasses forward(plan, c.passes);
    const at::Tensor x = at::ones({c.samples / c.passes, 4});
    for (int64_t pass = 0; pass < 3 * c.passes; ++pass) {
      if (pass % c.passes == 0) {
        model->zero_grad();
      }
      if (by_job) {
        job(x).backward();
        continue;
      }
      const at::Tensor loss = loss_of(forward.begin({{"x", x}})[0]) / c.passes;
      forward.end();
      loss.backward();
    }
  });
  return heard.said();
}

TEST(LatticeNotes, RanksWithoutSamplesAreNamedOnce) {
  const auto of_loop = said_of({.leaves = 8, .passes = 4}, /*by_job=*/false);
  ASSERT_EQ(of_loop.size(), 1u);
  EXPECT_SAYS(
      of_loop[0],
      "[forward] numerics exact: 2 of 4 ranks of {dp} have no samples, for 4 samples of a step of 16 are 2 of its "
      "batch leaves. Accepted: a lattice with batch=16 (the same for every run to be compared), fewer passes, or "
      "fewer ranks.");
  const auto of_job = said_of({.leaves = 3}, /*by_job=*/true);
  ASSERT_EQ(of_job.size(), 1u);
  EXPECT_SAYS(
      of_job[0],
      "[job] numerics exact: 1 of 4 ranks of {dp} have no samples, for 16 samples of a step of 16 are 3 of its "
      "batch leaves. Accepted: a lattice with batch=4 (the same for every run to be compared), or fewer ranks.");
}

// Four leaves are dealt by two.
TEST(LatticeNotes, AsManyLeavesAsRanksMayBeTooFew) {
  const auto said = said_of({.mesh = "dp=3", .samples = 12, .leaves = 4}, /*by_job=*/true);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_SAYS(said[0],
              "1 of 3 ranks of {dp} have no samples, for 12 samples of a step of 12 are 4 of its batch leaves");
  EXPECT_TRUE(said_of({.mesh = "dp=3", .samples = 12, .leaves = 3}, /*by_job=*/true).empty());
  EXPECT_TRUE(said_of({.mesh = "dp=3", .samples = 4, .leaves = 4}, /*by_job=*/true).empty()) << "by two in fast, too";
}

TEST(LatticeNotes, NothingIsSaidWhereNoLatticeWouldHelp) {
  for (const bool by_job : {false, true}) {
    EXPECT_TRUE(said_of({.leaves = 16}, by_job).empty());
    EXPECT_TRUE(said_of({.samples = 3, .leaves = 4}, by_job).empty()) << "three samples for four ranks";
    EXPECT_TRUE(said_of({.leaves = 2, .is_exact = false}, by_job).empty());
    EXPECT_TRUE(said_of({.mesh = "tp=4", .leaves = 4}, by_job).empty());
  }
  EXPECT_TRUE(said_of({.passes = 4}, /*by_job=*/false).empty());
}

}  // namespace
}  // namespace tessera::ranks::lattice_notes_test
