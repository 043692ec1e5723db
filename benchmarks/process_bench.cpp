// What sums cost between ranks: those of tessera between processes, through shared memory and over Gloo's messages, and
// between rank threads, beside Gloo's own all_reduce of the same tensor. Then what exchanges cost between processes.
//
// Usage: bench_process [RANKS]      starts itself as RANKS processes (2)
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "benchmarks/measure.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/processes/c10d.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/local.h"
#include "tessera/launch/run.h"

namespace tessera::benchmarks {
namespace {

using comm::Communicator;
using comm::Merge;

constexpr int64_t kSizes[] = {4, 64 << 10, 1 << 20, 16 << 20};  // bytes
constexpr int kRepeats = 30;

using Body = std::function<void(at::Tensor&)>;

// The least time of each body, in microseconds; they take turns, so that other work on the machine disturbs all alike.
std::vector<double> least_us(Communicator& world, int64_t bytes, const std::vector<Body>& bodies) {
  at::Tensor tensor = at::zeros({bytes / 4});
  std::vector<Least> times(bodies.size());
  const int64_t calls = std::clamp<int64_t>((4 << 20) / bytes, 1, 50);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      world.barrier();
      times[i].add(microseconds(calls, [&] { bodies[i](tensor); }));
    }
  }
  std::vector<double> result;
  for (const Least& time : times) {
    result.push_back(time.value());
  }
  return result;
}

Body all_reduce(Communicator& group) {
  return [&group](at::Tensor& tensor) { group.all_reduce(tensor, layout::ReduceOp::kSum)->wait(); };
}

// One leaf a rank. The results lie where the sums were, or in new memory.
Body merge(Communicator& group, const sums::MergePlan& plan, Merge::Memory memory) {
  return [&group, &plan, memory](at::Tensor& tensor) {
    group.merge(
        {.plan = plan, .sums = {tensor}, .sizes = tensor.sizes().vec(), .options = tensor.options(), .memory = memory});
  };
}

sums::MergePlan plan_for(int64_t ranks) {
  sums::MergePlan::Nodes nodes;
  for (int64_t i = 0; i < ranks; ++i) {
    nodes.push_back({{i, i + 1}});
  }
  return {std::move(nodes), {0, ranks}};
}

std::vector<Body> sums_over(Communicator& group, const sums::MergePlan& plan) {
  return {all_reduce(group), merge(group, plan, Merge::Memory::kReuse), merge(group, plan, Merge::Memory::kKeep)};
}

std::vector<double> thread_times(int64_t ranks) {
  std::vector<double> times;
  const sums::MergePlan plan = plan_for(ranks);
  comm::run_ranks(ranks,
                  [&](int64_t rank) {
                    Communicator& world = *comm::RankContext::require().world;
                    for (int64_t bytes : kSizes) {
                      const std::vector<double> own = least_us(world, bytes, sums_over(world, plan));
                      if (rank == 0) {
                        times.insert(times.end(), own.begin(), own.end());
                      }
                    }
                  },
                  {.intra_op_threads = 1});
  return times;
}

std::string name_of(int64_t ranks, int64_t bytes) {
  return std::to_string(ranks) + " ranks, " + std::to_string(bytes) + " bytes";
}

// Of one rank of the job. `threads` are thread_times.
void measure(int64_t rank, std::istringstream threads) {
  Communicator& world = *comm::RankContext::require().world;
  const auto gloo = comm::backend_of(world);
  const auto by_messages = comm::split_messages_only(world);
  const sums::MergePlan plan = plan_for(world.size());
  if (rank == 0) {
    print_header("microseconds; of Gloo's", {"Gloo", "all_reduce", "reused", "kept", "", "", ""});
  }
  for (int64_t bytes : kSizes) {
    std::vector<Body> bodies = {[&](at::Tensor& tensor) {
      std::vector<at::Tensor> list = {tensor};
      gloo->allreduce(list)->wait();
    }};
    for (Communicator* group : {by_messages.get(), &world}) {
      for (Body& body : sums_over(*group, plan)) {
        bodies.push_back(std::move(body));
      }
    }
    std::vector<double> times = least_us(world, bytes, bodies);
    for (int i = 0; i < 3; ++i) {
      threads >> times.emplace_back();
    }
    if (rank > 0) {
      continue;
    }
    const char* const kPaths[] = {" over Gloo", " by memory", " threads"};
    for (size_t path = 0; path < 3; ++path) {
      std::vector<double> row(times.begin() + 1 + 3 * path, times.begin() + 4 + 3 * path);
      row.insert(row.begin(), times[0]);
      for (size_t i = 1; i < 4; ++i) {
        row.push_back(row[i] / times[0]);
      }
      print_row(name_of(world.size(), bytes) + kPaths[path], row, "%10.2f");
    }
  }
}

// Of one rank of the job: the tensor is gathered by everyone; each has such a tensor for each.
void measure_exchanges(int64_t rank) {
  Communicator& world = *comm::RankContext::require().world;
  const auto by_messages = comm::split_messages_only(world);
  if (rank == 0) {
    print_header("microseconds", {"gather", "to all"});
  }
  for (int64_t bytes : kSizes) {
    const std::vector<at::Tensor> given(static_cast<size_t>(world.size()), at::zeros({bytes / 4}));
    std::vector<at::Tensor> taken;
    for (size_t i = 0; i < given.size(); ++i) {
      taken.push_back(at::empty({bytes / 4}));
    }
    std::vector<Body> bodies;
    for (Communicator* group : {by_messages.get(), &world}) {
      bodies.push_back([group, &taken](at::Tensor& tensor) { group->all_gather(taken, tensor)->wait(); });
      bodies.push_back([group, &taken, &given](at::Tensor&) { group->all_to_all(taken, given)->wait(); });
    }
    const auto times = least_us(world, bytes, bodies);
    if (rank == 0) {
      print_row(name_of(world.size(), bytes) + " over Gloo", {times[0], times[1]}, "%10.2f");
      print_row(name_of(world.size(), bytes) + " by memory", {times[2], times[3]}, "%10.2f");
    }
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  using namespace tessera;
  const auto ranks = argc > 1 ? std::atoll(argv[1]) : 2;
  if (!launch::is_launched()) {
    std::string times;
    for (double time : benchmarks::thread_times(ranks)) {
      times += std::to_string(time) + " ";
    }
    return launch::run_local({.ranks = ranks, .command = {"/proc/self/exe", std::to_string(ranks), times}});
  }
  const std::string threads = argc > 2 ? argv[2] : "";
  launch::run_job(ranks,
                  [&](int64_t rank) {
                    benchmarks::measure(rank, std::istringstream(threads));
                    benchmarks::measure_exchanges(rank);
                  },
                  {.intra_op_threads = 1});
  return 0;
}
