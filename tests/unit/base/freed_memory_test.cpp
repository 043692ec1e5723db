#include "tessera/base/freed_memory.h"

#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::base {
namespace {

constexpr size_t kBlock = size_t{6} << 20, kBlocks = 16, kPage = 4096;

int64_t page_faults() {
  rusage used;
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_minflt;
}

// Of a step that takes blocks, writes to them and frees them all.
int64_t faults_of_a_step() {
  const int64_t before = page_faults();
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.emplace_back(new char[kBlock]);
    std::memset(blocks.back().get(), 1, kBlock);
  }
  return page_faults() - before;
}

TEST(FreedMemory, StaysUntilItIsGivenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "they have a malloc of their own";
#endif
  constexpr int64_t kPages = kBlocks * kBlock / kPage;
  keep_freed_memory();
  faults_of_a_step();
  EXPECT_LT(faults_of_a_step(), kPages / 100);
  give_back_freed_memory();
  EXPECT_GT(faults_of_a_step(), kPages * 9 / 10);
}

}  // namespace
}  // namespace tessera::base
