// Whole tensors on one rank: the value of every layout, what is sent for it, and files that no rank's memory is too
// small for.
#include <filesystem>

#include <unistd.h>

#include "tessera/checkpoint/ranks/save_gathered.h"
#include "tessera/dtensor/front/gather_to.h"
#include "tests/ranks/support.h"
#include "tests/support/counting_allocator.h"

namespace tessera::ranks::saving_test {
namespace {

using dtensor::gather_to;
using layout::InterleavedShard;
using layout::On;
using layout::Partial;
using layout::Replicate;
using layout::Shard;

std::vector<Placement> choices(const Sizes& sizes) {
  std::vector<Placement> all = {Replicate(),
                                Shard(0),
                                Shard(1),
                                Shard(0, {.unit = 2}),
                                InterleavedShard(0, 3),
                                Partial(),
                                Partial(ReduceOp::kMax),
                                On(0),
                                On(1)};
  for (const Placement& ragged : ragged_cuts(0, sizes[0], 2)) {
    all.push_back(ragged);
  }
  return all;
}

TEST(GatherTo, EveryLayoutIsWholeOnOneRank) {
  int64_t checked = 0;
  for (const char* text : {"tp=3", "dp=2,tp=2"}) {
    const auto mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t rank) {
      for (const Sizes& sizes : std::vector<Sizes>{{12, 8}, {6, 5}, {3, 1}, {0, 4}}) {
        const at::Tensor value = integers(sizes);
        for (const Placements& placements : every_layout_of(mesh, sizes, choices(sizes))) {
          const int64_t root = (sizes[0] + sizes[1]) % mesh.size();
          const at::Tensor whole = gather_to(root, spread(value, mesh, placements));
          ASSERT_EQ(whole.defined(), rank == root) << layout::str(mesh, placements);
          if (rank != root) {
            continue;
          }
          EXPECT_TRUE(at::equal(whole, value)) << layout::str(mesh, placements) << " " << whole;
          ++checked;
        }
      }
    });
  }
  EXPECT_GT(checked, 150);
}

TEST(GatherTo, OnlyPartsThatTheRootLacksAreSent) {
  run_on(Mesh::parse("dp=2,tp=2"), [](int64_t rank) {
    const auto mesh = Mesh::parse("dp=2,tp=2");
    trace::Ledger& ledger = comm::RankContext::require().ledger;
    const auto bytes_of = [&](const Placements& placements) {
      const at::Tensor x = distribute(integers({8, 4}), mesh, placements);
      ledger.clear();
      gather_to(1, x);
      return ledger.total_bytes();
    };
    constexpr int64_t kBytes = 8 * 4 * 8;
    EXPECT_EQ(bytes_of({Replicate(), Replicate()}), 0);
    EXPECT_EQ(bytes_of({Replicate(), Shard(0)}), rank == 0 ? kBytes / 2 : 0);  // ranks 2 and 3 have copies
    EXPECT_EQ(bytes_of({Shard(0), Shard(1)}), rank == 1 ? 0 : kBytes / 4);
  });
}

TEST(GatherTo, HasNoHistoryAndMemoryOfItsOwn) {
  run_on(Mesh::parse("tp=2"), [](int64_t rank) {
    const auto mesh = Mesh::parse("tp=2");
    const at::Tensor x = distribute(integers({4}), mesh, {Replicate()}).set_requires_grad(true);
    const at::Tensor whole = gather_to(0, x), plain = gather_to(0, integers({2}));
    EXPECT_EQ(plain.defined(), rank == 0);
    if (rank != 0) {
      return;
    }
    EXPECT_FALSE(whole.requires_grad());
    whole.zero_();
    EXPECT_TRUE(at::equal(to_local(x.detach()), integers({4})));
  });
  EXPECT_SAYS(failure_on(2, [](int64_t) { gather_to(5, distribute(integers({4}), Mesh::parse("tp=2"), {Shard(0)})); }),
              "[gather_to] rank 5 is not on mesh {tp=2} of the tensor (rank ");
}

class SaveGathered : public testing::Test {
 protected:
  void SetUp() override { support::count_allocations(); }
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ =
      std::filesystem::temp_directory_path() / ("tessera_saving_" + std::to_string(::getpid()) + ".safetensors");
};

// Rank 0 holds a tensor and the parts that it is made of; another no more than a copy of its own part.
TEST_F(SaveGathered, NoRankHoldsMoreThanOneTensor) {
  constexpr int64_t kTensors = 8, kBytes = 256 * 256 * 8, kSlack = 16384;
  const auto mesh = Mesh::parse("dp=2,tp=2");
  run_on(mesh, [&](int64_t rank) {
    std::vector<checkpoint::NamedTensor> model;
    for (int64_t i = 0; i < kTensors; ++i) {
      const Placements placements = {i % 3 == 0 ? Replicate() : Shard(0), i % 2 == 0 ? Shard(0) : Shard(1)};
      model.push_back({"layer." + std::to_string(i), distribute(waves({256, 256}).add(i), mesh, placements)});
    }
    const int64_t before = support::bytes_of(rank).live;
    support::reset_peak(rank);
    checkpoint::save_gathered(path_, model);
    const int64_t peak = support::bytes_of(rank).peak - before;
    EXPECT_LE(peak, (rank == 0 ? 2 * kBytes : kBytes / 2) + kSlack) << "rank " << rank;
    EXPECT_EQ(support::bytes_of(rank).live, before);
    if (rank == 0) {
      std::printf("%ld tensors of %ld bytes saved, %ld at once on rank 0\n", static_cast<long>(kTensors),
                  static_cast<long>(kBytes), static_cast<long>(peak));
    }
  });
  const auto back = checkpoint::load_safetensors(path_).tensors;
  ASSERT_EQ(back.size(), kTensors);
  for (int64_t i = 0; i < kTensors; ++i) {
    EXPECT_TRUE(at::equal(back[i].tensor, waves({256, 256}).add(i))) << back[i].name;
  }
}

TEST_F(SaveGathered, AWriterThatFailsEndsAllAndLeavesNoFile) {
  const auto text = failure_on(2, [&](int64_t) {
    const at::Tensor x = distribute(integers({4}), Mesh::parse("tp=2"), {Shard(0)});
    checkpoint::save_gathered(path_, {{"a", x}, {"a", x}});
  });
  EXPECT_SAYS(text, "two tensors named \"a\" in one file");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace tessera::ranks::saving_test
