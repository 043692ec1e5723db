// What collectives cost between processes over Gloo: tessera's, made of tagged messages, beside Gloo's own all_reduce.
//
// Usage: bench_process [RANKS]      starts itself as RANKS processes (2)
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "tessera/comm/c10d.h"
#include "tessera/comm/context.h"
#include "tessera/comm/exact_merge.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/local.h"
#include "tessera/launch/run.h"

using namespace tessera;
using comm::ReduceOp;

namespace {

using Clock = std::chrono::steady_clock;

// The best of five means, in microseconds.
double time_of(comm::Communicator& world, int64_t calls, const std::function<void()>& body) {
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    world.barrier();
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) body();
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(calls));
  }
  return best;
}

void measure(int64_t rank) {
  auto& context = comm::RankContext::require();
  auto& world = *context.world;
  const auto ranks = world.size();
  const auto gloo = comm::backend_of(world);
  if (rank == 0) std::printf("%8s %12s %12s %12s %12s\n", "bytes", "gloo's", "all_reduce", "unchecked", "exact merge");
  for (const int64_t bytes : {4l, 4l << 10, 64l << 10, 1l << 20, 16l << 20}) {
    const auto calls = std::max<int64_t>(4, std::min<int64_t>(200, (16 << 20) / bytes));
    const auto numel = bytes / 4;
    auto tensor = at::ones({numel});
    comm::MergePlan::Nodes nodes;
    for (int64_t i = 0; i < ranks; ++i) nodes.push_back(layout::cover({i, i + 1}, ranks));
    const comm::MergePlan plan(nodes, {0, ranks});
    const auto theirs = time_of(world, calls, [&] {
      std::vector<at::Tensor> list = {tensor};
      gloo->allreduce(list)->wait();
    });
    const auto ours = time_of(world, calls, [&] { world.all_reduce(tensor, ReduceOp::kSum)->wait(); });
    context.compare_programs = false;
    const auto unchecked = time_of(world, calls, [&] { world.all_reduce(tensor, ReduceOp::kSum)->wait(); });
    context.compare_programs = true;
    const auto merge = time_of(world, calls, [&] {
      world.merge({.plan = plan, .sums = {tensor}, .sizes = {numel}, .options = tensor.options()});
    });
    if (rank == 0) std::printf("%8ld %9.0f us %9.0f us %9.0f us %9.0f us\n", static_cast<long>(bytes), theirs, ours, unchecked, merge), std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto ranks = argc > 1 ? std::atoll(argv[1]) : 2;
  if (!launch::is_launched()) {
    return launch::run_local({.ranks = ranks, .command = {"/proc/self/exe", std::to_string(ranks)}});
  }
  launch::run_job(ranks, measure, {.intra_op_threads = 1});
  return 0;
}
