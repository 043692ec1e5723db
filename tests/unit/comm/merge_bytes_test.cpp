// What a merge of exact sums sends: the closed form is what a merge over copies hands to its collectives.
#include "tessera/comm/call/call.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm::merge_bytes_test {
namespace {

// What a rank hands to others in the collectives that it calls.
struct Sent : Watcher {
  void on_begin(const Call& call) override {
    const auto self = static_cast<size_t>(call.group->rank());
    for (size_t i = 0; i < static_cast<size_t>(call.group->size()); ++i) {
      if (i != self) {
        bytes += static_cast<int64_t>(call.inputs[call.kind == Kind::kAllToAll ? i : 0].nbytes());
      }
    }
  }
  void on_end(const Call&, bool) override {}
  int64_t bytes = 0;
};

// Of the calling rank, in a merge over copies.
int64_t bytes_by_copies(const Merge& merge) {
  const auto sent = std::make_shared<Sent>();
  auto& watchers = RankContext::require().watchers;
  watchers.push_back(sent);
  merge_by_copies(world(), merge);
  watchers.pop_back();
  return sent->bytes;
}

Merge merge_of(const sums::MergePlan& plan, int64_t numel) {
  Merge merge{.plan = plan, .sizes = {numel}, .options = at::TensorOptions().dtype(at::kDouble)};
  for (size_t i = 0; i < plan.nodes()[world().rank()].size(); ++i) {
    merge.sums.push_back(at::ones(merge.sizes, merge.options));
  }
  return merge;
}

// More than 64 KiB, so that the parts of a ring travel.
TEST(MergeBytes, EveryNodeTravels) {
  const sums::MergePlan plan({sums::cover({0, 3}, 8), sums::cover({3, 6}, 8), sums::cover({6, 8}, 8)}, {0, 8});
  run_ranks(
      3,
      [&](int64_t rank) {
        Merge merge = merge_of(plan, 9000);
        EXPECT_EQ(merge.bytes_sent(rank), bytes_by_copies(merge));
        merge.scatter = sums::Scatter{.dim = 0, .parts = {{0, 3000}, {3000, 6000}, {6000, 9000}}};
        EXPECT_EQ(merge.bytes_sent(rank), bytes_by_copies(merge));
      },
      within(20000));
}

// One rank holds nothing, parts are uneven, elements are left out, and nodes stay open.
TEST(MergeBytes, UnevenPartsAndOpenNodes) {
  const sums::MergePlan plan({{}, {{0, 2}, {3, 4}}}, {0, 4});
  run_ranks(
      2,
      [&](int64_t rank) {
        Merge merge = merge_of(plan, 9001);
        EXPECT_EQ(merge.bytes_sent(rank), bytes_by_copies(merge));
        merge.scatter = sums::Scatter{.dim = 0, .parts = {{0, 10}, {8000, 8001}}};
        EXPECT_EQ(merge.bytes_sent(rank), rank == 1 ? 2 * 80 : 0);
        EXPECT_EQ(merge.bytes_sent(rank), bytes_by_copies(merge));
      },
      within(20000));
}

TEST(MergeBytes, ListsOfNodes) {
  run_ranks(
      2,
      [](int64_t) {
        const auto sent = std::make_shared<Sent>();
        RankContext::require().watchers.push_back(sent);
        exchange_nodes(world(), {{{0, 2}}, {}, {{0, 1}, {4, 5}}}, {0, 8}, at::kCPU);
        EXPECT_EQ(sent->bytes, 3 * sums::bytes_of_nodes({0, 8}));
      },
      within(20000));
}

}  // namespace
}  // namespace tessera::comm::merge_bytes_test
