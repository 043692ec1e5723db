// Every collective over every backend that ranks of one process can have: what comes out, bit for bit.
#include <ATen/ops/zeros.h>

#include "tests/unit/comm/collective_cases.h"
#include "tests/unit/comm/device_ranks.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm::collectives_test {
namespace {

struct Backend {
  const char* name;
  std::vector<int64_t> ranks, sizes;
  // Runs `body` over a world of so many ranks; an exception of it fails the test.
  std::function<void(int64_t ranks, const std::function<void()>& body)> run;
  std::function<at::Tensor(Tensors values, ReduceOp op, bool is_even)> combine = combine_members;
  bool moves = true;  // false: what comes out has the sizes and the dtype, no more
  std::function<bool()> is_there = [] { return true; };
};

void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

// What devices say to each other beside the library goes over Gloo.
bool has_gloo() {
  StandInHub hub;
  const auto errors = run_devices(hub, 1, [](int64_t) {});
  return !contains(described(errors[0]), "without Gloo");
}

// Empty, one, fewer than ranks, uneven, and beyond what a backend does in one piece or by one member.
const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {.name = "Devices",
       .ranks = {1, 2, 3, 4},
       .sizes = {0, 1, 3, 1031, 40013},
       .run = [](int64_t ranks,
                 const std::function<void()>& body) { run_devices_well(ranks, [&](int64_t) { body(); }); },
       .combine = combine_as_stand_in,
       .is_there = has_gloo},
      {.name = "Fake",
       .ranks = {1, 2, 7},
       .sizes = {0, 5},
       .run = [](int64_t ranks, const std::function<void()>& body) { run_fake(ranks, ranks / 2, body); },
       .moves = false},
      {.name = "Threads",
       .ranks = {1, 2, 3, 4, 7},
       .sizes = {0, 1, 3, 5, 1031, 20011},
       .run = [](int64_t ranks,
                 const std::function<void()>& body) { run_ranks(ranks, [&](int64_t) { body(); }, within(20000)); }},
  };
  return all;
}

class Collectives : public testing::TestWithParam<std::tuple<Backend, CollectiveCase>> {};

void verify(const Backend& backend, const CollectiveCase& each, const Sample& sample) {
  for (const auto& outcome : each.run(world(), sample)) {
    const auto& [what, got, expected] = outcome;
    ASSERT_TRUE(backend.moves ? identical(got, expected)
                              : got.sizes() == expected.sizes() && got.scalar_type() == expected.scalar_type())
        << describe(each, world(), sample, outcome);
  }
}

TEST_P(Collectives, GiveWhatTheTableSays) {
  const auto& [backend, each] = GetParam();
  if (!backend.is_there()) {
    GTEST_SKIP() << "this backend is not built";
  }
  for (const auto ranks : backend.ranks) {
    backend.run(ranks, [&, &backend = backend, &each = each] {
      for (const auto size : each.depends_on_sample ? backend.sizes : std::vector<int64_t>{1031}) {
        for (const auto dtype : each.depends_on_sample ? collective_types() : std::vector{at::kFloat}) {
          verify(backend, each, {size, dtype, backend.combine});
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         testing::Combine(testing::ValuesIn(backends()), testing::ValuesIn(collective_cases())),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + std::get<1>(info.param).name;
                         });

TEST(Arguments, WrongOnesAreErrorsThatSayWhatIsAccepted) {
  const auto thrown = [](const std::function<void()>& call) {
    return message_from<c10::Error>([&] { run_ranks(1, [&](int64_t) { call(); }, within(500)); });
  };
  EXPECT_TRUE(
      contains(thrown([] { world().all_gather({}, at::zeros({2})); }), "one for each of its 1 members is accepted"));
  EXPECT_TRUE(
      contains(thrown([] { world().all_reduce(at::zeros({2, 3}).t(), ReduceOp::kSum); }), "must be contiguous"));
  EXPECT_TRUE(contains(thrown([] { world().all_reduce(at::Tensor(), ReduceOp::kSum); }), "undefined"));
  EXPECT_TRUE(contains(thrown([] { world().all_reduce(at::zeros({2}, at::kLong), ReduceOp::kAvg); }),
                       "sum, max, min and prod"));
  EXPECT_TRUE(contains(thrown([] { world().all_reduce(at::zeros({2}, at::kComplexFloat), ReduceOp::kMax); }),
                       "sum, prod and avg"));
  EXPECT_TRUE(contains(thrown([] { world().broadcast(at::zeros({2}), 1); }), "0 to 0 is accepted"));
  EXPECT_TRUE(contains(thrown([] { world().send(at::zeros({2}), 0, 0); }), "itself"));
  EXPECT_TRUE(contains(thrown([] { world().all_gather({at::zeros({3})}, at::zeros({2})); }), "equal sizes"));
  EXPECT_TRUE(contains(thrown([] { world().all_gather({at::zeros({2}, at::kLong)}, at::zeros({2})); }),
                       "one dtype and device"));
  EXPECT_TRUE(contains(thrown([] { world().split({{1}}, "odd"); }), "no group of odd contains rank 0"));
  EXPECT_TRUE(contains(thrown([] { world().split({{0, 1}}, "odd"); }), "lacks rank 1"));
  EXPECT_TRUE(contains(
      thrown([] { world().all_reduce(at::zeros({2}, at::TensorOptions().device(at::kMeta)), ReduceOp::kSum); }),
      "cpu"));
}

}  // namespace
}  // namespace tessera::comm::collectives_test
