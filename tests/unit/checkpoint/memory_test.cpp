// Memory that is kept from one save to the next, and blocks that are read ahead.
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/ranks/host_memory.h"
#include "tessera/checkpoint/ranks/read_ahead.h"
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
class ReadAheadOfSmall : public testing::Test {
 protected:
  ReadAheadOfSmall() {
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

  MemoryStore store_;
  const std::string folder_ = "run/step_000007";
  Manifest manifest_;
  std::vector<FileRange> ranges_;
};

TEST_F(ReadAheadOfSmall, GivesBlocksInTheirOrderAndLeavesThemAlone) {
  ASSERT_GE(ranges_.size(), 10U);
  RangeReader reader(store_, folder_, manifest_);
  ReadAhead ahead(reader, ranges_);
  for (const auto& range : ranges_) {
    const char* bytes = ahead.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // in which it reads what it may
    EXPECT_EQ(std::string(bytes, static_cast<size_t>(range.end - range.begin)), content(range));
  }
}

TEST_F(ReadAheadOfSmall, FailsAtTheBlockThatIsDamaged) {
  const auto& damaged = ranges_[6];
  const auto path = path_in(folder_, manifest_.files[damaged.file].name);
  FaultyStore faulty(store_, {.flipped = {{path, 8 * damaged.begin}}});
  RangeReader reader(faulty, folder_, manifest_);
  ReadAhead ahead(reader, ranges_);
  for (int i = 0; i < 6; ++i) {
    ahead.next();
  }
  EXPECT_NE(small_save::error_of([&] { ahead.next(); }).find(path + "\" is damaged"), std::string::npos);
}

TEST_F(ReadAheadOfSmall, MayBeLeftBeforeTheEnd) {
  for (const size_t count : {0, 1, 5}) {
    RangeReader reader(store_, folder_, manifest_);
    ReadAhead ahead(reader, ranges_);
    for (size_t i = 0; i < count; ++i) {
      ahead.next();
    }
  }
  RangeReader reader(store_, folder_, manifest_);
  const ReadAhead nothing(reader, {});
}

}  // namespace
}  // namespace tessera::checkpoint::memory_test
