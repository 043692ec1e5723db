// What a step tells the rank about its passes, and that every end leaves what was there.
#include "tessera/dtensor/state/state.h"
#include "tessera/parallel/step.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::step_test {
namespace {

using dtensor::RankState;
using parallel::Backward;
using parallel::PassSamples;
using parallel::Step;
using parallel::StepOptions;

plan::Plan plan_on(const char* mesh) {
  plan::Plan plan;
  plan.mesh = Mesh::parse(mesh);
  plan.batch_axes = {"dp"};
  return plan;
}

PassSamples some(int64_t count, int64_t total) { return {.count = count, .total = total}; }

StepOptions loop_of(int64_t passes, uint64_t number = 0) {
  return {.number = number, .passes_of_loop = passes, .backward = Backward::kAfterPass};
}

TEST(Step, OfAJobLeavesNothingBehind) {
  run_on(Mesh::parse("dp=1"), [](int64_t) {
    const RankState& rank = RankState::require();
    Step step(plan_on("dp=1"));
    step.begin({.number = 7});
    const uint64_t passes = rank.pass.sites.passes();
    for (int i = 0; i < 2; ++i) {
      step.begin_pass(some(2, 4));
      EXPECT_EQ(rank.pass.region(), Mesh::parse("dp=1"));
      EXPECT_TRUE(rank.pass.means().in_job && rank.pass.means().as_shares);
      EXPECT_EQ(rank.pass.sites.step(), 7u);
      step.end_pass();
      EXPECT_FALSE(rank.pass.region() || rank.pass.backward_region());
      EXPECT_FALSE(rank.pass.means().in_job || rank.pass.means().as_shares);
    }
    EXPECT_EQ(rank.pass.sites.passes(), passes + 2);
    step.end();
    EXPECT_FALSE(step.options());
  });
}

TEST(Step, OfALoopLastsUntilItsBackward) {
  run_on(Mesh::parse("dp=1"), [](int64_t) {
    const RankState& rank = RankState::require();
    Step step(plan_on("dp=1"));
    step.begin(loop_of(3));
    step.begin_pass(some(2, 6));
    step.end_pass();
    step.end_pass();  // nothing is open
    EXPECT_FALSE(rank.pass.region());
    EXPECT_EQ(rank.pass.backward_region(), Mesh::parse("dp=1"));
    EXPECT_EQ(rank.pass.means().parts, 3);
    EXPECT_EQ(rank.pass.means().samples, 6);
  });
}

// A teacher that is asked between a student's passes.
TEST(Step, OfTwoModelsKeepTheirOwn) {
  run_on(Mesh::parse("dp=1"), [](int64_t) {
    const RankState& rank = RankState::require();
    Step student(plan_on("dp=1")), teacher(plan_on("dp=1"));
    student.begin(loop_of(2, 5));
    student.begin_pass(some(2, 4));
    student.end_pass();
    teacher.begin(loop_of(1, 9));
    teacher.begin_pass(some(2, 2));
    EXPECT_EQ(rank.pass.sites.step(), 9u);
    EXPECT_EQ(rank.pass.means().parts, 2);
    teacher.end_pass();
    student.begin_pass(some(2, 4));
    EXPECT_EQ(rank.pass.sites.step(), 5u);
    student.end_pass();
  });
}

// A teacher that is asked inside of a student's pass: what the student draws next is not what it drew before.
TEST(Step, OfAnotherModelInsideOfAPassLeavesItAsItWas) {
  run_on(Mesh::parse("dp=1"), [](int64_t) {
    RankState& rank = RankState::require();
    Step student(plan_on("dp=1")), teacher(plan_on("dp=1"));
    student.begin(loop_of(1, 5));
    student.begin_pass(some(2, 2));
    const uint64_t first = rank.pass.sites.next_draw();
    const int64_t budget = rank.engine.gathered.budget();
    {
      const parallel::StepScope scope(teacher, {.number = 5, .passes_of_loop = 1});
      teacher.begin_pass(some(2, 2));
      rank.engine.gathered.set_budget(budget + 1);
      rank.pass.sites.next_draw();
    }
    EXPECT_NE(rank.pass.sites.next_draw(), first);
    EXPECT_EQ(rank.engine.gathered.budget(), budget);
    EXPECT_EQ(rank.pass.region(), Mesh::parse("dp=1"));
    EXPECT_EQ(rank.pass.backward_region(), Mesh::parse("dp=1"));
    student.end_pass();
    EXPECT_FALSE(rank.pass.region());
  });
}

TEST(Step, EndsWithItsLife) {
  run_on(Mesh::parse("dp=1"), [](int64_t) {
    {
      Step first(plan_on("dp=1"));
      first.begin({.number = 1});
      first.begin_pass(some(1, 1));
      Step step(std::move(first));
      first.end();  // has nothing any more
      EXPECT_TRUE(RankState::require().pass.region());
    }
    EXPECT_FALSE(RankState::require().pass.region());
  });
}

TEST(Step, EndsWithItsScope) {
  run_on(Mesh::parse("dp=1"), [](int64_t) {
    Step step(plan_on("dp=1"));
    EXPECT_THROW(
        {
          const parallel::StepScope scope(step, {.number = 1});
          step.begin_pass(some(1, 1));
          throw std::runtime_error("in the model");
        },
        std::runtime_error);
    EXPECT_FALSE(RankState::require().pass.region() || step.options());
  });
}

TEST(Step, RefusesPassesOutOfOrder) {
  const auto failure = [](const std::function<void(Step&)>& body) {
    return failure_on(1, [&](int64_t) {
      Step step(plan_on("dp=1"));
      body(step);
    });
  };
  EXPECT_SAYS(failure([](Step& step) { step.begin_pass(some(1, 1)); }), "[step] a pass begins outside of a step");
  EXPECT_SAYS(failure([](Step& step) {
                step.begin({});
                step.begin_pass(some(1, 2));
                step.begin_pass(some(1, 2));
              }),
              "[step] a pass begins before the last one has ended");
  EXPECT_SAYS(failure([](Step& step) {
                step.begin({});
                step.begin_pass(some(3, 2));
              }),
              "[step] a pass of 3 samples in a step of 2");
  EXPECT_SAYS(failure([](Step& step) { step.begin(loop_of(-1)); }), "[step] a step of -1 passes");
}

TEST(RankState, RefusesWhatCannotBe) {
  const auto failure = [](const std::function<void(RankState&)>& body) {
    return failure_on(1, [&](int64_t) { body(RankState::require()); });
  };
  EXPECT_SAYS(failure([](RankState& rank) { rank.pass.set_means({.parts = 0}); }), "[step] 0 passes over 0 samples");
  EXPECT_SAYS(failure([](RankState& rank) { rank.exact.set_step_tokens(-1); }), "a step of -1 tokens");
  EXPECT_SAYS(failure([](RankState& rank) { rank.engine.gathered.set_budget(-1); }), "a budget of -1 bytes");
  EXPECT_SAYS(failure([](RankState& rank) {
                rank.engine.parameters.add(at::ones(2), {.name = "w", .input = {}, .output = {}});
              }),
              "[parameter] `w` is no DTensor");
}

}  // namespace
}  // namespace tessera::ranks::step_test
