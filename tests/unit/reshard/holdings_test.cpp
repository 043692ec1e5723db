#include "tessera/reshard/holdings.h"

#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "tests/unit/layout/random_layout.h"

namespace tessera::reshard::holdings_test {
namespace {

using layout::Replicate;
using layout::Shard;
using Sizes = std::vector<int64_t>;

std::map<int64_t, int64_t> counts_by_sender(const std::vector<Transfer>& transfers) {
  std::map<int64_t, int64_t> counts;
  for (const Transfer& transfer : transfers) {
    if (transfer.from != transfer.to) {
      counts[transfer.from] += numel(transfer.box);
    }
  }
  return counts;
}

TEST(Box, NumelAndIntersection) {
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({{1, 4}, {0, 2}}), 6);
  EXPECT_EQ(intersect({{0, 4}}, {{2, 6}}), (Box{{2, 4}}));
  EXPECT_EQ(numel(intersect({{0, 2}}, {{5, 6}})), 0);
}

TEST(Holdings, BoxesAreThoseOfTheSpec) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  for (int i = 0; i < 300; ++i) {
    const Mesh mesh = random.mesh(3, 4);
    const Sizes sizes = random.sizes(3, 9);
    const Placements even = random.placements(mesh, static_cast<int64_t>(sizes.size()), true);
    const Spec spec = Spec::contiguous(mesh, random.with_ragged_cuts(mesh, even, sizes), sizes, c10::ScalarType::Float);
    const Holdings holdings(spec);
    for (int64_t rank : mesh.ranks()) {
      EXPECT_EQ(holdings.box_of(rank), spec.local_ranges(*mesh.coord_of(rank)));
    }
  }
  EXPECT_THROW(Holdings(Mesh::parse("x=2"), {Shard(1)}, {4}), c10::Error);
  EXPECT_THROW(Holdings(Mesh::parse("x=2"), {Shard(0)}, {4}).box_of(2), c10::Error);
}

// Transfers between random layouts of random, partly overlapping sets of ranks.
TEST(Exchange, GivesEveryElementOnceWhatTheSidesAgreeOn) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  for (int i = 0; i < 1000; ++i) {
    const Mesh a = random.mesh(3, 3);
    const Mesh b = random.mesh(3, 3);
    auto ranks = random.permutation(b.size());
    const int64_t shift = random.number(0, 5);
    for (int64_t& rank : ranks) {
      rank += shift;
    }
    const Mesh moved(b.axes(), ranks);
    const Sizes sizes = random.sizes(3, 8);
    const auto ndim = static_cast<int64_t>(sizes.size());
    const Exchange exchange(Holdings(a, random.with_ragged_cuts(a, random.placements(a, ndim), sizes), sizes),
                            Holdings(moved, random.placements(moved, ndim), sizes));
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    int64_t changed = 0;
    for (int64_t rank = 0; rank < 40; ++rank) {
      const RankTransfers own = exchange.transfers_of(rank);
      sends.insert(sends.end(), own.sends.begin(), own.sends.end());
      receives.insert(receives.end(), own.receives.begin(), own.receives.end());
      int64_t received = 0;
      std::set<int64_t> senders;
      for (const Transfer& transfer : own.receives) {
        EXPECT_GT(numel(transfer.box), 0);
        EXPECT_TRUE(senders.insert(transfer.from).second) << "two boxes from one sender";
        EXPECT_EQ(intersect(transfer.box, exchange.from().box_of(transfer.from)), transfer.box);
        EXPECT_EQ(intersect(transfer.box, exchange.to().box_of(rank)), transfer.box);
        received += numel(transfer.box);
        changed += transfer.from == rank ? 0 : numel(transfer.box);
        for (const Transfer& other : own.receives) {
          EXPECT_TRUE(other == transfer || numel(intersect(other.box, transfer.box)) == 0);
        }
      }
      EXPECT_EQ(received, moved.coord_of(rank) ? numel(exchange.to().box_of(rank)) : 0);
    }
    const auto by_pair = [](const Transfer& x, const Transfer& y) {
      return std::tie(x.from, x.to) < std::tie(y.from, y.to);
    };
    auto all = exchange.all();
    for (auto* list : {&sends, &receives, &all}) {
      std::sort(list->begin(), list->end(), by_pair);
    }
    EXPECT_EQ(sends, receives);
    EXPECT_EQ(all, receives);
    EXPECT_EQ(changed, exchange.moved());
  }
}

// What every element of the tensor is told by the transfers of all ranks: which one, by whom, to whom.
void expect_each_element_once(const Exchange& exchange, const Spec& from, const Spec& to, int64_t ranks) {
  std::vector<Transfer> sends, receives;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const RankTransfers own = exchange.transfers_of(rank);
    sends.insert(sends.end(), own.sends.begin(), own.sends.end());
    receives.insert(receives.end(), own.receives.begin(), own.receives.end());
    std::vector<int64_t> counts(from->numel()), lacking(from->numel());
    const auto add = [&](std::vector<int64_t>& to_counts, const Box& box, int64_t value) {
      for (int64_t i = 0; i < from->numel(); ++i) {
        bool is_in = true;
        for (int64_t d = from->ndim(), rest = i; d-- > 0; rest /= from->sizes[d]) {
          is_in = is_in && rest % from->sizes[d] >= box[d].begin && rest % from->sizes[d] < box[d].end;
        }
        to_counts[i] += is_in ? value : 0;
      }
    };
    for (const Transfer& transfer : own.receives) {
      add(counts, transfer.box, 1);
      EXPECT_TRUE(from->holds(*from->mesh.coord_of(transfer.from))) << "from a rank that holds nothing";
    }
    const auto coord = to->mesh.coord_of(rank);
    for (const Box& box : coord && to->holds(*coord) ? Holdings(to).boxes_of(rank) : std::vector<Box>()) {
      add(lacking, box, 1);
    }
    EXPECT_EQ(counts, lacking) << "rank " << rank;
  }
  const auto by_pair = [](const Transfer& x, const Transfer& y) {
    return std::tie(x.to, x.from) < std::tie(y.to, y.from);
  };
  std::stable_sort(sends.begin(), sends.end(), by_pair);
  std::stable_sort(receives.begin(), receives.end(), by_pair);
  EXPECT_EQ(sends, receives);
}

TEST(Exchange, OfInterleavedCutsAndOfWhatIsOnOneCoordinateGivesEveryElementOnce) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  const auto random_spec = [&](const Mesh& mesh, const Sizes& sizes) {
    auto placements = random.placements(mesh, static_cast<int64_t>(sizes.size()), true);
    std::map<int64_t, uint8_t> blocks;
    for (auto& placement : placements) {
      if (placement.is_partial()) {
        placement = Replicate();
      } else if (placement.is_shard()) {
        const auto choice = blocks.emplace(placement.dim, static_cast<uint8_t>(random.number(1, 3))).first->second;
        placement.blocks = choice;
      }
    }
    return Spec::contiguous(mesh, placements, sizes, c10::ScalarType::Float);
  };
  for (int i = 0; i < 700; ++i) {
    const Mesh a = random.mesh(3, 3);
    const Mesh b = random.mesh(3, 4);
    auto ranks = random.permutation(b.size());
    const int64_t shift = random.number(0, 5);
    std::transform(ranks.begin(), ranks.end(), ranks.begin(), [&](int64_t rank) { return rank + shift; });
    Sizes sizes = random.sizes(2, 3);
    std::transform(sizes.begin(), sizes.end(), sizes.begin(), [](int64_t size) { return 6 * size; });
    const Spec from = random_spec(a, sizes);
    const Spec to = random_spec(Mesh(b.axes(), ranks), sizes);
    const Exchange exchange(Holdings::of_holders(from), Holdings::of_holders(to));
    ASSERT_NO_FATAL_FAILURE(expect_each_element_once(exchange, from, to, 70)) << from.str() << " -> " << to.str();
  }
}

TEST(Exchange, OfCutsThatSpanDimsGivesEveryElementOnce) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  layout::RandomLayouts random(seed);
  for (int i = 0; i < 300; ++i) {
    const Mesh a(std::vector<layout::Axis>{{"a", random.number(1, 3)}, {"b", random.number(1, 3)}});
    const Mesh b(std::vector<layout::Axis>{{"c", random.number(1, 5)}});
    const Sizes sizes = {random.number(1, 4), random.number(1, 4), random.number(1, 3)};
    const auto draw = [&](const Mesh& mesh) {
      const Placements placements = random.number(0, 3) == 0 ? random.placements(mesh, 3)
                                                             : random.spanning_cuts(mesh, sizes, random.number(1, 2));
      return Spec::contiguous(mesh, placements, sizes, c10::ScalarType::Float);
    };
    const Spec from = draw(a), to = draw(i % 2 == 0 ? a : b);
    const Exchange exchange{Holdings(from), Holdings(to)};
    ASSERT_NO_FATAL_FAILURE(expect_each_element_once(exchange, from, to, 10)) << from.str() << " -> " << to.str();
  }
  const Spec spec =
      Spec::contiguous(Mesh::parse("x=2"), {layout::RaggedShard({0, 1}, {4, 5})}, {3, 3, 2}, c10::ScalarType::Float);
  EXPECT_EQ(Holdings(spec).boxes_of(0), (std::vector<Box>{{{0, 1}, {0, 3}, {0, 2}}, {{1, 2}, {0, 1}, {0, 2}}}));
  EXPECT_THROW(Holdings(spec).box_of(0), c10::Error);
}

TEST(Exchange, NothingMovesWhereNothingChanges) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Mesh flat = mesh.flatten({"a", "b"}, "x");
  const Exchange same(Holdings(mesh, {Shard(0), Shard(0)}, {8, 3}), Holdings(flat, {Shard(0)}, {8, 3}));
  EXPECT_TRUE(same.is_identity());
  EXPECT_EQ(same.moved(), 0);
  // 5 rows: 3 + 2 and then 2, 1, 1, 1 on two axes, but 2, 2, 1, 0 on the flattened one.
  const Exchange uneven(Holdings(mesh, {Shard(0), Shard(0)}, {5}), Holdings(flat, {Shard(0)}, {5}));
  EXPECT_FALSE(uneven.is_identity());
  EXPECT_EQ(uneven.moved(), 2);
}

TEST(Exchange, SharesTheSendingAmongReplicas) {
  // Two copies on ranks 0-3, wanted whole by eight others: all four senders send equally.
  const Mesh old_mesh = Mesh::parse("copy=2,x=2");
  const Mesh new_mesh({{"y", 8}}, {10, 11, 12, 13, 14, 15, 16, 17});
  const Exchange exchange(Holdings(old_mesh, {Replicate(), Shard(0)}, {6}), Holdings(new_mesh, {Replicate()}, {6}));
  EXPECT_EQ(counts_by_sender(exchange.all()), (std::map<int64_t, int64_t>{{0, 12}, {1, 12}, {2, 12}, {3, 12}}));
  // Four copies over two axes.
  const Exchange copies(Holdings(Mesh::parse("copy=2,again=2"), {Replicate(), Replicate()}, {6}),
                        Holdings(new_mesh, {Replicate()}, {6}));
  EXPECT_EQ(counts_by_sender(copies.all()), (std::map<int64_t, int64_t>{{0, 12}, {1, 12}, {2, 12}, {3, 12}}));
  // A rank that holds a copy keeps it.
  const Exchange local(Holdings(old_mesh, {Replicate(), Replicate()}, {6}),
                       Holdings(old_mesh, {Shard(0), Shard(0)}, {6}));
  EXPECT_EQ(local.moved(), 0);
}

TEST(Exchange, OfOneRankAmongManyIsCheap) {
  // 65,536 ranks: all pairs would be 4 billion.
  const Mesh mesh = Mesh::parse("a=256,b=256");
  const Exchange exchange(Holdings(mesh, {Shard(0), Shard(1)}, {4096, 4096}),
                          Holdings(mesh, {Shard(1), Shard(0)}, {4096, 4096}));
  for (int64_t rank : {int64_t{0}, int64_t{257}, int64_t{40000}}) {
    const RankTransfers own = exchange.transfers_of(rank);
    EXPECT_EQ(own.sends.size(), 1u);
    EXPECT_EQ(own.receives.size(), 1u);
  }
  // Copies on all ranks, before and after: each keeps its own, and asks nobody.
  const Mesh other = mesh.flatten({"b", "a"}, "x");
  const Exchange copies(Holdings(mesh, {Replicate(), Replicate()}, {4096}), Holdings(other, {Replicate()}, {4096}));
  for (int64_t rank = 0; rank < 2000; ++rank) {
    EXPECT_EQ(copies.transfers_of(rank).sends, (std::vector<Transfer>{{rank, rank, {{0, 4096}}}}));
  }
  EXPECT_THROW(Exchange(Holdings(mesh, {Shard(0), Shard(1)}, {4, 4}), Holdings(mesh, {Shard(0), Shard(1)}, {4, 5})),
               c10::Error);
}

}  // namespace
}  // namespace tessera::reshard::holdings_test
