// Forward passes of more operators than the record of forward calls has room for at first.
#include "tests/ranks/exact_program.h"

namespace tessera::ranks::long_pass_test {
namespace {

using dtensor::ForwardPlans;

constexpr int64_t kNodes = 40000;

// The net's parameters are read first, and kNodes operators stand between them and the loss.
Program long_program(int64_t nodes) {
  return [nodes](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      at::Tensor logits = at::linear(net.hidden(batch.x), net.w2);
      for (int64_t i = 0; i < nodes; ++i) {
        logits = i % 2 == 0 ? logits * 1.5 : logits * (1 / 1.5);
      }
      net.loss_of(logits, batch.y).backward();
    });
    net.keep_gradients();
  };
}

std::string differs_from_one_rank(const Program& program, const Cell& cell, Numerics numerics) {
  const Outcome one = run_program(program, kWhole, numerics, Lattice{2, 1, 8}),
                found = run_program(program, cell, numerics, Lattice{2, 1, 8});
  if (numerics == Numerics::kExact) {
    return difference(found, one);
  }
  if (!found.error.empty()) {
    return found.error;
  }
  for (const auto& [name, value] : one.results) {
    if (const double error = error_of(found.results.at(name), value); !(error <= 1e-12)) {
      return c10::str(name, " is off by ", error);
    }
  }
  return "";
}

TEST(LongPasses, AreKnownToTheirBackward) {
  const Program program = long_program(kNodes);
  for (const Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
    EXPECT_EQ(differs_from_one_rank(program, {"dp=2", {3}}, numerics), "") << static_cast<int>(numerics);
    EXPECT_EQ(differs_from_one_rank(program, {"dp=2,tp=2", {3}}, numerics), "") << static_cast<int>(numerics);
  }
  EXPECT_EQ(differs_from_one_rank(program, {"1", {2, 4}}, Numerics::kExact), "");
}

TEST(LongPasses, NeedRoomForOneOfThem) {
  const Program program = long_program(kNodes);
  const auto room_after = [&](int64_t passes) {
    size_t room = 0;
    run_on(Mesh::parse("1"), [&](int64_t) {
      dtensor::set_numerics(Numerics::kFast);
      World world(kWhole, Numerics::kFast);
      for (int64_t i = 0; i < passes; ++i) {
        program(world);
      }
      room = RankState::require().engine.forward_plans.size();
    });
    return room;
  };
  EXPECT_EQ(room_after(1), size_t{1} << 16);
  EXPECT_EQ(room_after(3), size_t{1} << 16);
}

TEST(LongPasses, KeepWhatNoBackwardHasSeen) {
  ForwardPlans plans;
  dtensor::CallPlan plan;
  for (uint64_t node = 0; node < ForwardPlans::kFewest + 7; ++node) {
    plans.record(node, plan, node);
  }
  EXPECT_EQ(plans.size(), 2 * ForwardPlans::kFewest);
  for (uint64_t node = 0; node < ForwardPlans::kFewest + 7; ++node) {
    ASSERT_NE(plans.find(node), nullptr) << node;
    EXPECT_EQ(plans.find(node)->use, node);
  }
  // Now all of them have been differentiated: the next pass may have their places.
  const uint64_t second = ForwardPlans::kFewest + 7, end = second + 2 * ForwardPlans::kFewest;
  for (uint64_t node = second; node < end; ++node) {
    plans.record(node, plan, node);
  }
  EXPECT_EQ(plans.size(), 2 * ForwardPlans::kFewest);
  EXPECT_NE(plans.find(second), nullptr);
  EXPECT_EQ(plans.find(0), nullptr);
  EXPECT_TRUE(plans.is_lost(0));
  EXPECT_FALSE(plans.is_lost(end));           // not yet
  EXPECT_FALSE(plans.is_lost(~uint64_t{0}));  // a parameter's end of the graph
}

TEST(LongPasses, HaveABound) {
  ForwardPlans plans;
  dtensor::CallPlan plan;
  for (uint64_t node = 0; node < ForwardPlans::kMost + 3; ++node) {
    plans.record(node, plan, 0);
  }
  EXPECT_EQ(plans.size(), ForwardPlans::kMost);
  EXPECT_EQ(plans.find(2), nullptr);
  EXPECT_TRUE(plans.is_lost(2));
  EXPECT_NE(plans.find(3), nullptr);
}

// A graph from which newer ones took the places: `exact` says so.
TEST(LongPasses, RefuseAGraphThatIsForgotten) {
  EXPECT_SAYS(failure_on(1,
                         [](int64_t) {
                           dtensor::set_numerics(Numerics::kExact, Lattice{2, 1, 8});
                           World world(kWhole, Numerics::kExact);
                           Net net(world);
                           world.each_batch([&](const Batch& batch) {
                             const at::Tensor old = net.loss(batch);
                             at::Tensor x = net.w1 * 1.0;
                             x.sum().backward();
                             for (uint64_t i = 0; i < ForwardPlans::kFewest; ++i) {
                               x = net.w1 * 1.0;
                             }
                             old.backward();
                           });
                         }),
              "the gradient of a graph whose record is gone");
}

// A schedule takes the gradients of one pass while older ones are open.
TEST(LongPass, NodesOfOpenPassesStayKnown) {
  const auto is_known_after = [](int64_t kept_from) {
    ForwardPlans plans;
    dtensor::CallPlan plan;
    plan.is_kept = true;
    for (uint64_t node = 0; node < 20; ++node) {
      plans.record(node, plan, node);
    }
    plans.keep_from(kept_from);
    plans.find(19);
    for (uint64_t node = 20; node < 2 * ForwardPlans::kFewest; ++node) {
      plans.record(node, plan, node);
    }
    return plans.peek(3) != nullptr;
  };
  EXPECT_TRUE(is_known_after(0));
  EXPECT_FALSE(is_known_after(10));
}

}  // namespace
}  // namespace tessera::ranks::long_pass_test
