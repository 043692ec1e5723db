// Slices of the whole that ranks hold, of every layout.
#include <map>
#include <mutex>

#include "tessera/dtensor/front/chunks.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::chunks_test {
namespace {

using dtensor::chunks_of;
using layout::InterleavedShard;
using layout::On;
using layout::Partial;
using layout::Replicate;
using layout::Shard;

std::vector<Placement> choices() {
  return {Replicate(),           Shard(0), Shard(1), Shard(0, {.unit = 2}), InterleavedShard(0, 3), On(0), On(1),
          InterleavedShard(1, 2)};
}

at::Tensor at_offsets(at::Tensor whole, const dtensor::Chunk& chunk) {
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    whole = whole.narrow(dim, chunk.offsets.at(static_cast<size_t>(dim)), chunk.part.size(dim));
  }
  return whole;
}

// How often the calling rank's chunks have each element.
at::Tensor times_held(const at::Tensor& x, const at::Tensor& value) {
  const at::Tensor times = at::zeros(value.sizes(), at::kLong);
  for (const dtensor::Chunk& chunk : chunks_of(x)) {
    EXPECT_TRUE(at::equal(chunk.part, at_offsets(value, chunk)));
    EXPECT_EQ(chunk.part.numel() == 0, value.numel() == 0);
    at_offsets(times, chunk).add_(1);
  }
  return times;
}

int64_t copies(const Mesh& mesh, const Placements& placements) {
  int64_t ranks = 1;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    ranks *= placements[static_cast<size_t>(axis)].is_replicate() ? mesh.axis(axis).size : 1;
  }
  return ranks;
}

TEST(ChunksOf, EveryElementStandsInOneChunkOfEachRankThatHoldsIt) {
  for (const char* text : {"tp=3", "dp=2,tp=2"}) {
    const auto mesh = Mesh::parse(text);
    std::mutex lock;
    std::map<std::string, std::pair<at::Tensor, int64_t>> all;
    run_on(mesh, [&](int64_t) {
      for (const Sizes& sizes : std::vector<Sizes>{{12, 8}, {6, 10}, {3, 2}, {0, 4}}) {
        const at::Tensor value = waves(sizes);
        for (const Placements& placements : every_layout(mesh, 2, choices())) {
          const at::Tensor times = times_held(spread(value, mesh, placements), value);
          EXPECT_TRUE(value.numel() == 0 || times.max().item<int64_t>() <= 1) << layout::str(mesh, placements);
          const std::lock_guard locked(lock);
          auto& [sum, want] = all[layout::str(mesh, placements) + std::to_string(sizes[0])];
          sum = sum.defined() ? sum + times : times;
          want = copies(mesh, placements);
        }
      }
    });
    EXPECT_GT(all.size(), 25);
    for (const auto& [name, times] : all) {
      EXPECT_TRUE(times.first.eq(times.second).all().item<bool>()) << name << " " << times.first;
    }
  }
}

TEST(ChunksOf, AnInterleavedCutHasSeveralAndATensorWithoutElementsOne) {
  run_on(Mesh::parse("tp=2"), [](int64_t rank) {
    const auto mesh = Mesh::parse("tp=2");
    const auto chunks = chunks_of(distribute(waves({12, 2}), mesh, {InterleavedShard(0, 3)}));
    ASSERT_EQ(chunks.size(), 3);
    EXPECT_EQ(chunks[1].offsets, (Sizes{4 + 2 * rank, 0}));
    EXPECT_EQ(chunks[1].part.sizes(), (Sizes{2, 2}));
    const auto none = chunks_of(distribute(waves({0, 4}), mesh, {Shard(1)}));
    ASSERT_EQ(none.size(), 1);
    EXPECT_EQ(none[0].part.sizes(), (Sizes{0, 4}));
    EXPECT_EQ(chunks_of(distribute(waves({}), mesh, {Replicate()}))[0].offsets, Sizes());
    EXPECT_EQ(chunks_of(distribute(waves({1, 4}), mesh, {Shard(0)})).size(), rank == 0 ? 1 : 0);
  });
}

TEST(ChunksOf, APartIsTheTensorsMemory) {
  run_on(Mesh::parse("tp=2"), [](int64_t) {
    const at::Tensor x = distribute(waves({12, 2}), Mesh::parse("tp=2"), {InterleavedShard(0, 3)});
    for (const dtensor::Chunk& chunk : chunks_of(x.requires_grad_())) {
      chunk.part.copy_(integers(chunk.part.sizes()) + static_cast<double>(chunk.offsets[0]));
    }
    const at::Tensor whole = full_tensor(x.detach());
    for (const dtensor::Chunk& chunk : chunks_of(x)) {
      EXPECT_TRUE(
          at::equal(at_offsets(whole, chunk), integers(chunk.part.sizes()) + static_cast<double>(chunk.offsets[0])));
    }
  });
}

TEST(ChunksOf, RanksMayAskDifferentlyOften) {
  run_on(Mesh::parse("tp=2"), [](int64_t rank) {
    const at::Tensor x = distribute(waves({4, 4}), Mesh::parse("tp=2"), {Shard(0)});
    for (int64_t i = 0; i < rank; ++i) {
      EXPECT_EQ(chunks_of(x).size(), 1);
    }
    EXPECT_TRUE(at::equal(full_tensor(x), waves({4, 4})));
  });
}

TEST(ChunksOf, TermsHaveNone) {
  const auto text = failure_on(2, [](int64_t) { chunks_of(spread(integers({4}), Mesh::parse("tp=2"), {Partial()})); });
  EXPECT_SAYS(text, "[chunks] of a tensor of which ranks hold terms, ");
  EXPECT_SAYS(text, "accepted: one whose terms were added");
}

}  // namespace
}  // namespace tessera::ranks::chunks_test
