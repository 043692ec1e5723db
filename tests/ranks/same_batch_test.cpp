// Ranks that are handed different batches are told so in the first calls of a model, with the tensor and the rank.
#include <random>

#include "tessera/comm/call/call.h"
#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/parallel/forward_pass.h"
#include "tessera/parallel/job.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::same_batch_test {
namespace {

using dtensor::NamedValue;
using dtensor::RankState;
using parallel::ForwardPasses;
using plan::Plan;

constexpr uint64_t kSeed = 20261122;

const Mesh& mesh() {
  static const Mesh of_all = Mesh::parse("dp=2,tp=2");
  return of_all;
}

std::string difference(const std::vector<NamedValue>& values) {
  return dtensor::difference_between_ranks(RankState::require(), mesh(), values);
}

class Counter : public comm::Watcher {
 public:
  void on_begin(const comm::Call&) override { ++calls; }
  void on_end(const comm::Call&, bool) override {}
  int calls = 0;
};

TEST(SameValues, AreToldFromOthersBySizesDtypeAndBytes) {
  run_on(mesh(), [](int64_t rank) {
    const auto on = [&](int64_t culprit, const at::Tensor& there, const at::Tensor& elsewhere) {
      return difference({{"a", integers({2})}, {"b", rank == culprit ? there : elsewhere}});
    };
    const at::Tensor x = integers({3, 4});
    EXPECT_EQ(on(2, x.clone(), x), "");
    EXPECT_EQ(on(2, x.t().contiguous().t(), x), "");
    EXPECT_EQ(on(2, x + 1, x), "b is Double[3, 4] on ranks 0, 1, 3, other values on rank 2");
    EXPECT_EQ(on(0, x + 1, x), "b is Double[3, 4] on rank 0, other values on ranks 1, 2, 3");
    EXPECT_EQ(on(3, x.narrow(0, 0, 2), x), "b is Double[3, 4] on ranks 0, 1, 2, Double[2, 4] on rank 3");
    EXPECT_EQ(on(3, x.to(at::kFloat), x), "b is Double[3, 4] on ranks 0, 1, 2, Float[3, 4] on rank 3");
    EXPECT_EQ(on(1, x.reshape({4, 3}), x), "b is Double[3, 4] on ranks 0, 2, 3, Double[4, 3] on rank 1");
    EXPECT_EQ(on(1, at::Tensor(), x), "b is Double[3, 4] on ranks 0, 2, 3, nothing on rank 1");
    EXPECT_EQ(on(1, at::empty({0, 4}), at::empty({0, 4})), "");
    EXPECT_EQ(on(1, at::empty({3, 4}, at::kMeta), at::empty({3, 4}, at::kMeta)), "");
    EXPECT_EQ(on(1, distribute(x, mesh(), "{dp: S(0)}"), distribute(x, mesh(), "{dp: S(0)}")), "");
    EXPECT_EQ(on(1, distribute(x, mesh(), "{dp: S(0)}"), x),
              "b is Double[3, 4] on ranks 0, 2, 3, a DTensor of Double[3, 4] on rank 1");
    EXPECT_EQ(difference({{"a", x.add(rank == 1)}, {"b", x}, {"c", x.add(rank)}}),
              "a is Double[3, 4] on ranks 0, 2, 3, other values on rank 1; c is Double[3, 4] on rank 0, other values "
              "on ranks 1, 2, 3");
    EXPECT_EQ(difference(rank == 3 ? std::vector<NamedValue>{{"a", x}} : std::vector<NamedValue>{{"a", x}, {"b", x}}),
              "rank 0 has a, b, and rank 3 a");
    EXPECT_EQ(difference({}), "");
  });
}

TEST(SameValues, EveryByteOfEveryRankCounts) {
  run_on(mesh(), [](int64_t rank) {
    std::mt19937_64 random(kSeed);  // the same on every rank
    for (int trial = 0; trial < 200; ++trial) {
      SCOPED_TRACE(c10::str("seed ", kSeed, ", trial ", trial));
      at::Tensor bytes = at::empty({static_cast<int64_t>(1 + random() % 100)}, at::kByte);
      for (int64_t i = 0; i < bytes.numel(); ++i) {
        bytes.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(random());
      }
      const auto culprit = static_cast<int64_t>(random() % 4);
      const auto at_byte = random() % static_cast<uint64_t>(bytes.numel()), flip = 1 + random() % 255;
      EXPECT_EQ(difference({{"x", bytes}}), "");
      if (rank == culprit) {
        bytes.data_ptr<uint8_t>()[at_byte] ^= static_cast<uint8_t>(flip);
      }
      const std::string found = difference({{"x", bytes}});
      EXPECT_SAYS(found, culprit == 0 ? "on rank 0, other values on ranks 1, 2, 3"
                                      : c10::str(", other values on rank ", culprit));
    }
  });
}

Plan plan(std::vector<std::string> batch_axes, const Mesh& of = mesh()) {
  Plan all;
  all.mesh = of;
  all.batch_axes = std::move(batch_axes);
  return all;
}

// The batch of one rank: its labels are others than those of rank 0, if `is_own`.
std::vector<NamedValue> batch(int64_t rank, bool is_own) {
  return {{"ids", integers({4, 3})}, {"labels", integers({4, 3}) + (is_own ? rank : 0)}};
}

TEST(ForwardPasses, CompareTheBatchInCallsOneTwoFourEight) {
  for (const uint64_t wrong : {1, 2, 4, 8}) {
    const std::string error = failure_on(4, [&](int64_t rank) {
      ForwardPasses passes(plan({"dp"}));
      for (uint64_t call = 1; call <= 8; ++call) {
        passes.begin(batch(rank, call == wrong));
        passes.end();
      }
      ADD_FAILURE() << "not found in call " << wrong;
    });
    EXPECT_SAYS(error,
                "[forward] the ranks were given different batches: labels is Double[4, 3] on rank 0, other values on "
                "ranks 1, 2, 3 (rank ");
    EXPECT_SAYS(error, "Accepted: the whole batch on every rank");
    EXPECT_SAYS(
        error,
        "where each data rank has its own rows (a sampler's), ForwardPasses(plan, micro_batches, Batch::kLocal)");
  }
  const std::string error = failure_on(4, [&](int64_t rank) { ForwardPasses(plan({})).begin(batch(rank, true)); });
  EXPECT_SAYS(error, "Accepted: the whole batch on every rank");
  EXPECT_EQ(error.find("kLocal"), std::string::npos) << error;
}

TEST(ForwardPasses, SendNothingInOtherCalls) {
  run_on(mesh(), [](int64_t rank) {
    const auto counter = std::make_shared<Counter>();
    RankState::require().ctx.watchers.push_back(counter);
    ForwardPasses passes(plan({"dp"}));
    for (const int sends : {1, 1, 0, 1, 0, 0, 0, 1, 0}) {
      const int before = counter->calls;
      passes.begin(batch(rank, false));
      passes.end();
      EXPECT_EQ(counter->calls - before, sends);
    }
  });
}

TEST(ForwardPasses, CompareTargetsThatMeetTheOutputToo) {
  const auto loss = [](int64_t rank, int calls) {
    ForwardPasses passes(plan({"dp"}));
    at::Tensor output;
    for (int i = 0; i < calls; ++i) {
      output = passes.begin(batch(rank, false))[0];
      passes.end();
    }
    output.sub(integers({4, 3}) + rank);
  };
  EXPECT_SAYS(failure_on(4, [&](int64_t rank) { loss(rank, 1); }),
              "[aten::sub.Tensor] a plain operand differs between ranks: other is Double[4, 3] on rank 0, other values "
              "on ranks 1, 2, 3 (rank ");
  EXPECT_EQ(failure_on(4, [&](int64_t rank) { loss(rank, 3); }), "");
  EXPECT_SAYS(failure_on(4,
                         [&](int64_t rank) {
                           dtensor::set_check_plain(true);  // stays what the program has said
                           loss(rank, 3);
                         }),
              "other values on ranks 1, 2, 3");
}

// Memory that has no values yet is written.
TEST(ForwardPasses, DoNotCompareWhatAnOperatorWrites) {
  run_on(mesh(), [](int64_t rank) {
    ForwardPasses passes(plan({"dp"}));
    const at::Tensor x = passes.begin(batch(rank, false))[0];
    passes.end();
    at::Tensor out = at::full({4, 3}, rank, at::kDouble);
    at::add_out(out, x, x);
    EXPECT_TRUE(at::equal(out, integers({4, 3}) * 2));
    at::Tensor copy = at::full({4, 3}, rank, at::kDouble);
    copy.copy_(x);
    EXPECT_TRUE(at::equal(copy, integers({4, 3})));
  });
}

TEST(ForwardPasses, OfAnImaginedJobAndOfOneRankFindNothing) {
  comm::run_fake(4, 1, [] {
    ForwardPasses passes(plan({"dp"}));
    passes.begin(batch(1, true));
    passes.end();
  });
  run_on(Mesh::parse("tp=1"), [](int64_t) { ForwardPasses(plan({}, Mesh::parse("tp=1"))).begin(batch(0, false)); });
}

struct Net : torch::nn::Module {
  Net() { weight = register_parameter("weight", at::ones({3}, at::kDouble)); }
  at::Tensor weight;
};

TEST(Jobs, CompareTheirBatches) {
  const std::string error = failure_on(4, [](int64_t rank) {
    const auto net = std::make_shared<Net>();
    parallel::place(*net, plan({"dp"}));
    parallel::Job job(net, plan({"dp"}),
                      [net](const std::vector<at::Tensor>& rows) { return rows[0].mul(net->weight).mean(); });
    job(integers({4, 3}));
    job(integers({4, 3}) + rank);
  });
  EXPECT_SAYS(error,
              "[job] the ranks were given different batches: tensor 0 is Double[4, 3] on rank 0, other values on ranks "
              "1, 2, 3 (rank ");
  EXPECT_SAYS(error, "job.run_rows(samples, read)");
}

}  // namespace
}  // namespace tessera::ranks::same_batch_test
