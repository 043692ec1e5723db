#include "tessera/base/kept_blocks.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "tessera/base/freed_memory.h"

namespace tessera::base {
namespace {

class KeptBlocks : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "nothing is kept, so that it sees what is read after it was freed";
#endif
    keep_freed_blocks();
    free_kept_blocks();
  }
};

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

void* free_after_writing(int64_t count) {
  const at::Tensor block = bytes(count);
  std::memset(block.mutable_data_ptr(), 1, static_cast<size_t>(count));
  return block.mutable_data_ptr();
}

TEST_F(KeptBlocks, AreTakenAgainTheLastOneFirst) {
  at::Tensor first = bytes(70000), second = bytes(70000);
  void* const places[] = {first.mutable_data_ptr(), second.mutable_data_ptr()};
  second.reset(), first.reset();
  const at::Tensor again = bytes(70001), more = bytes(65537), other = bytes(65536);  // a class is (65536, 73728]
  EXPECT_EQ(again.data_ptr(), places[0]);
  EXPECT_EQ(more.data_ptr(), places[1]);
  EXPECT_EQ(kept_bytes(), 0);
  EXPECT_NE(other.data_ptr(), places[0]);
}

TEST_F(KeptBlocks, HoldWhatIsWrittenToThem) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::pair<at::Tensor, uint8_t>> live;
  for (int turn = 0; turn < 4000; ++turn) {
    const size_t count = size_t{1} << (random() % 22);
    const at::Tensor block = bytes(static_cast<int64_t>(count + random() % count));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data_ptr()) % 64, 0);
    const auto value = static_cast<uint8_t>(random());
    std::memset(block.mutable_data_ptr(), value, block.nbytes());
    live.emplace_back(block, value);
    if (live.size() > 20) {
      std::swap(live[random() % live.size()], live.back());
      const auto [checked, expected] = live.back();
      const auto* data = checked.const_data_ptr<uint8_t>();
      ASSERT_TRUE(std::all_of(data, data + checked.nbytes(), [e = expected](uint8_t found) { return found == e; }));
      live.pop_back();
    }
  }
  EXPECT_LE(kept_bytes(), kKeptBytesOfThread);
}

TEST_F(KeptBlocks, AreOfLimitedSizeAndNumber) {
  free_after_writing(kLargestKeptBlock + 1);
  EXPECT_EQ(kept_bytes(), 0);
  std::vector<at::Tensor> many;
  for (size_t i = 0; i < kKeptBytesOfThread / kLargestKeptBlock; ++i) {
    many.push_back(bytes(kLargestKeptBlock));
  }
  at::Tensor small = bytes(64);
  many.clear();
  EXPECT_EQ(kept_bytes(), kKeptBytesOfThread);
  small.reset();  // more than that: all are let go of
  EXPECT_EQ(kept_bytes(), 64);
  give_back_freed_memory();
  EXPECT_EQ(kept_bytes(), 0);
}

TEST_F(KeptBlocks, StayWithTheThreadThatFreedThem) {
  at::Tensor here = bytes(3000);
  std::thread([there = std::move(here)]() mutable {
    void* const place = there.mutable_data_ptr();
    there.reset();
    EXPECT_EQ(kept_bytes(), 3072);
    EXPECT_EQ(bytes(3000).data_ptr(), place);
  }).join();
  EXPECT_EQ(kept_bytes(), 0);
}

TEST_F(KeptBlocks, AreTakenByPointerToo) {
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  void* const raw = allocator.raw_allocate(5000);
  allocator.raw_deallocate(raw);
  EXPECT_EQ(bytes(5000).data_ptr(), raw);
  allocator.raw_deallocate(allocator.raw_allocate(0));
}

struct Reports final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { sizes.push_back(size); }
  bool memoryProfilingEnabled() const override { return true; }

  std::vector<int64_t> sizes;
};

TEST_F(KeptBlocks, AreSeenByAProfilerAsTensors) {
  const auto reports = std::make_shared<Reports>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reports);
    free_after_writing(3000);
    free_after_writing(3000);  // kept meanwhile
  }
  EXPECT_EQ(reports->sizes, std::vector<int64_t>({3000, -3000, 3000, -3000}));
}

}  // namespace
}  // namespace tessera::base
