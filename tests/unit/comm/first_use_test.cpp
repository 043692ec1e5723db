// Note [First use]: the first call of MKL's vector functions is over before any rank begins.
#include <mutex>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads/run_ranks.h"

namespace tessera::comm {
namespace {

std::mutex the_mutex;
std::vector<std::string> the_calls;  // of all threads, in time

void note(const std::string& call) {
  const std::lock_guard lock(the_mutex);
  the_calls.push_back(call);
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& call) {
  if (std::string(call.name()) == "aten::sqrt") {
    note(call.name());
  }
  return nullptr;
}

TEST(FirstUse, IsOverBeforeRanksBegin) {
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&on_operator));
  for (int job = 0; job < 2; ++job) {
    run_ranks(2, [](int64_t) { note("rank"); });
  }
  at::removeCallback(handle);
  EXPECT_EQ(the_calls, (std::vector<std::string>{"aten::sqrt", "aten::sqrt", "rank", "rank", "rank", "rank"}));
}

}  // namespace
}  // namespace tessera::comm
