#include "tessera/kernels/base/parallel.h"

#include <atomic>
#include <cfenv>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

namespace tessera::kernels::parallel_test {
namespace {

class Parallel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* limit = std::getenv("OMP_THREAD_LIMIT"); limit != nullptr && std::string_view(limit) == "1") {
      GTEST_SKIP() << "OMP_THREAD_LIMIT=1 allows no second thread";
    }
    at::set_num_threads(2);
  }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_F(Parallel, VisitsEveryItemOnceOnTorchsThreads) {
  for (int64_t count : {0, 1, 2, 7, 100}) {
    for (int64_t grain : {1, 3, 200}) {
      std::vector<std::atomic<int>> visits(count);
      std::mutex mutex;
      std::set<std::thread::id> threads;
      parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          ++visits[i];
        }
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      });
      for (const auto& visit : visits) {
        EXPECT_EQ(visit, 1);
      }
      EXPECT_EQ(threads.size(), count == 0 ? 0u : count > grain ? 2u : 1u) << count << " items of grain " << grain;
    }
  }
}

TEST_F(Parallel, RunsSeriallyInsideItself) {
  EXPECT_EQ(thread_count(), 2);
  parallel_for(2, 1, [&](int64_t, int64_t) { EXPECT_EQ(thread_count(), 1); });
}

// Below one if this thread rounds downward.
float one_less_a_little() {
  volatile float one = 1, little = 1e-20f;
  return one - little;
}

TEST_F(Parallel, PinsTheFloatEnvironmentOfEveryThread) {
  std::fesetround(FE_DOWNWARD);
  std::atomic<int> pinned = 0;
  EXPECT_LT(one_less_a_little(), 1);
  parallel_for(2, 1, [&](int64_t, int64_t) { pinned += one_less_a_little() == 1; });
  EXPECT_LT(one_less_a_little(), 1);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(pinned, 2);
}

TEST_F(Parallel, ThrowsWhatABodyThrows) {
  EXPECT_THROW(parallel_for(8, 1,
                            [](int64_t begin, int64_t) {
                              if (begin > 0) {
                                throw std::runtime_error("of the second thread");
                              }
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace tessera::kernels::parallel_test
