// Memory that is kept from one save to the next, and blocks that are read into it.
#include <set>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/ranks/host_memory.h"
#include "tessera/checkpoint/ranks/own_blocks.h"
#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tests/unit/checkpoint/small_save.h"

namespace tessera::checkpoint::memory_test {
namespace {

TEST(HostMemory, IsTheNextOnesWhenItIsLetGo) {
  auto memory = HostMemory::of_thread();
  const void* first = memory->empty({1000}, at::kFloat).data_ptr();
  const auto* kept = memory.get();
  memory.reset();
  memory = HostMemory::of_thread();
  EXPECT_EQ(memory.get(), kept);
  EXPECT_EQ(memory->empty({10}, at::kDouble).data_ptr(), first);
}

TEST(HostMemory, HasOneHolderAtATime) {
  auto first = HostMemory::of_thread();
  const auto values = first->copy(at::arange(100));
  auto second = HostMemory::of_thread();
  EXPECT_NE(first.get(), second.get());
  second->empty({100}, at::kLong).zero_();
  EXPECT_TRUE(at::equal(values, at::arange(100)));
  std::thread([&] { EXPECT_NE(HostMemory::of_thread().get(), second.get()); }).join();
  std::thread([held = std::move(second)] {}).join();  // let go by another thread
  const auto* other = HostMemory::of_thread().get();
  EXPECT_EQ(other, HostMemory::of_thread().get());
}

TEST(HostMemory, TakesTensorsOfAnySize) {
  const auto memory = HostMemory::of_thread();
  std::vector<at::Tensor> tensors;
  for (const int64_t megabytes : {0, 1, 200, 100, 300, 0, 1}) {  // of 256 MiB at a time, or one larger
    const auto tensor = memory->empty({megabytes, 1 << 20}, at::kByte);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({megabytes, 1 << 20}));
    if (megabytes > 0) {
      tensor[0].fill_(static_cast<int64_t>(tensors.size()));
      tensor[-1].fill_(static_cast<int64_t>(tensors.size()));
      tensors.push_back(tensor);
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE((tensors[i][0] == static_cast<int64_t>(i)).all().item<bool>()) << i;
    EXPECT_TRUE((tensors[i][-1] == static_cast<int64_t>(i)).all().item<bool>()) << i;
  }
}

// Every block of a small checkpoint, and a store that may be damaged.
class BlocksOfSmall : public testing::Test {
 protected:
  BlocksOfSmall() {
    store_.make_folder("run");
    manifest_ = small_save::save(store_, "run", small_save::save_of(7));
    for (size_t file = 0; file < manifest_.files.size(); ++file) {
      const int64_t size = manifest_.files[file].size, block = manifest_.save.block_size;
      for (int64_t begin = 0; begin < size; begin += block) {
        ranges_.push_back({static_cast<int64_t>(file), begin, std::min(begin + block, size)});
      }
    }
  }

  std::string content(const FileRange& range) {
    std::string bytes(static_cast<size_t>(range.end - range.begin), '\0');
    store_.read(path_in(folder_, manifest_.files[range.file].name), range.begin, bytes.data(), bytes.size());
    return bytes;
  }

  // What `store` has of it; the store outlives it.
  OpenCheckpoint open(Store& store) {
    return {.store = {std::shared_ptr<Store>(), &store}, .folder = folder_, .manifest = manifest_, .catalogue = {}};
  }

  static void wait_for(OwnBlocks& own) {
    while (!own.wait()) {
    }
  }

  MemoryStore store_;
  const std::string folder_ = "run/step_000007";
  Manifest manifest_;
  std::vector<FileRange> ranges_;
};

TEST_F(BlocksOfSmall, AreReadAndCheckedByThreadsAndStay) {
  ASSERT_GE(ranges_.size(), 10U);
  const auto checkpoint = open(store_);
  int64_t size = 0;
  for (const auto& range : ranges_) {
    size += range.end - range.begin;
  }
  for (const int threads : {1, 4, 100}) {
    HostMemory memory;
    OwnBlocks own(checkpoint, ranges_, memory, threads);
    wait_for(own);
    EXPECT_EQ(own.damage(), "");
    EXPECT_EQ(own.bytes_read(), size);
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const auto bytes = static_cast<size_t>(ranges_[i].end - ranges_[i].begin);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(own.content(i)), bytes), content(ranges_[i])) << i;
    }
  }
}

// Whichever thread comes to it first: what is said is the same in every run.
TEST_F(BlocksOfSmall, TellOfTheFirstThatIsDamaged) {
  const auto path = [&](const FileRange& range) { return path_in(folder_, manifest_.files[range.file].name); };
  const auto &damaged = ranges_[6], &also = ranges_.back();
  ASSERT_NE(damaged.file, also.file);
  FaultyStore faulty(store_, {.flipped = {{path(damaged), 8 * damaged.begin}, {path(also), 8 * also.begin}}});
  const auto checkpoint = open(faulty);
  std::set<std::string> told;
  for (const int threads : {1, 1, 4, 4, 4, 4}) {
    HostMemory memory;
    OwnBlocks own(checkpoint, ranges_, memory, threads);
    wait_for(own);
    told.insert(own.damage());
  }
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told.begin()->find(path(damaged) + "\" is damaged"), std::string::npos);
}

TEST_F(BlocksOfSmall, MayBeLeftBeforeTheEnd) {
  const auto checkpoint = open(store_);
  HostMemory memory;
  for (const int threads : {1, 4}) {
    const OwnBlocks left(checkpoint, ranges_, memory, threads);
  }
  OwnBlocks nothing(checkpoint, {}, memory, 1);
  EXPECT_TRUE(nothing.wait());
}

}  // namespace
}  // namespace tessera::checkpoint::memory_test
