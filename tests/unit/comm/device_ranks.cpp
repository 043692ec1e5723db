#include "tests/unit/comm/device_ranks.h"

#include <algorithm>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/comm/join/process.h"

namespace tessera::comm {

std::vector<std::exception_ptr> run_devices(StandInHub& hub, int64_t ranks,
                                            const std::function<void(int64_t rank)>& body,
                                            std::chrono::milliseconds deadline) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto joined = join_process(HandedGroup{.store = store, .rank = rank, .size = ranks, .devices = hub.backends()},
                                   {.deadline = deadline, .intra_op_threads = 1, .ends_process = false});
        try {
          body(rank);
        } catch (const std::exception& error) {
          joined.fail(base::message_of(error));
          throw;
        }
        joined.leave();
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return errors;
}

void run_devices_well(int64_t ranks, const std::function<void(int64_t rank)>& body, uint64_t seed) {
  StandInHub hub(at::kCPU, seed);
  const auto errors = run_devices(hub, ranks, body);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_EQ(described(errors[rank]), "") << "rank " << rank << " of " << ranks;
  }
  EXPECT_EQ(hub.mismatches(), 0);
}

at::Tensor combine_as_stand_in(std::vector<at::Tensor> values, ReduceOp op, bool is_even) {
  const auto dtype = values[0].scalar_type();
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  const bool is_real = dtype == at::kFloat || dtype == at::kDouble;
  if (is_even && ((is_real && (is_sum || op == ReduceOp::kProd)) || (at::isComplexType(dtype) && is_sum))) {
    std::reverse(values.begin(), values.end());
  }
  return combined(values, op);
}

std::string described(const std::exception_ptr& error) {
  if (!error) {
    return "";
  }
  try {
    std::rethrow_exception(error);
  } catch (const DivergenceError& caught) {
    return "DivergenceError: " + base::message_of(caught);
  } catch (const base::RankFailed& caught) {
    return "RankFailed: " + base::message_of(caught);
  } catch (const base::CommTimeout& caught) {
    return "CommTimeout: " + base::message_of(caught);
  } catch (const base::CommError& caught) {
    return "CommError: " + base::message_of(caught);
  } catch (const std::exception& caught) {
    return "another: " + base::message_of(caught);
  }
}

}  // namespace tessera::comm
