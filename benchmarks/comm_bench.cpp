// How fast rank threads merge sums: all_reduce, and the exact merge of one node each, over 2 and 4 ranks. The merge
// writes where the sums were, as all_reduce does (reused), or beside them (kept), or hands each rank its slice
// (scatter). And what the flight recorder adds to each collective.

#include <functional>

#include <ATen/ATen.h>

#include "benchmarks/measure.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/trace/flight_recorder.h"

namespace tessera::benchmarks {
namespace {

using comm::Merge;

using Body = std::function<void(comm::Communicator&, at::Tensor&)>;

// The least time of each body, as rank 0 sees it; they take turns, so that other work on the machine disturbs all
// alike.
std::vector<double> least_us(int64_t ranks, int64_t kib, const std::vector<Body>& bodies) {
  std::vector<Least> times(bodies.size());
  comm::run_ranks(ranks, [&](int64_t rank) {
    comm::Communicator& world = *comm::RankContext::require().world;
    at::Tensor tensor = at::zeros({kib * 256});
    for (int repeat = 0; repeat < 40; ++repeat) {
      for (size_t i = 0; i < bodies.size(); ++i) {
        world.barrier();
        const double one = microseconds(5, [&] { bodies[i](world, tensor); });
        if (rank == 0) {
          times[i].add(one);
        }
      }
    }
  });
  std::vector<double> result;
  for (const Least& time : times) {
    result.push_back(time.value());
  }
  return result;
}

void all_reduce(comm::Communicator& world, at::Tensor& tensor) {
  world.all_reduce(tensor, layout::ReduceOp::kSum)->wait();
}

// Each rank holds one of as many leaves.
sums::MergePlan plan_for(int64_t ranks) {
  sums::MergePlan::Nodes nodes;
  for (int64_t i = 0; i < ranks; ++i) {
    nodes.push_back({{i, i + 1}});
  }
  return {std::move(nodes), {0, ranks}};
}

std::vector<double> times_of(int64_t ranks, int64_t kib) {
  const sums::MergePlan plan = plan_for(ranks);
  const auto merge = [&](const at::Tensor& tensor) {
    return Merge{.plan = plan, .sums = {tensor}, .sizes = tensor.sizes().vec(), .options = tensor.options()};
  };
  const Body reused = [&](comm::Communicator& world, at::Tensor& tensor) {
    Merge call = merge(tensor);
    call.memory = Merge::Memory::kReuse;
    world.merge(call);
  };
  const Body kept = [&](comm::Communicator& world, at::Tensor& tensor) { world.merge(merge(tensor)); };
  const Body scattered = [&](comm::Communicator& world, at::Tensor& tensor) {
    Merge call = merge(tensor);
    call.scatter = sums::Scatter{.dim = 0};
    for (int64_t i = 0; i < ranks; ++i) {
      call.scatter->parts.push_back(layout::cut(tensor.size(0), ranks, i));
    }
    world.merge(call);
  };
  std::vector<double> times = least_us(ranks, kib, {all_reduce, reused, kept, scattered});
  for (size_t i = 1; i < 4; ++i) {
    times.push_back(times[i] / times[0]);
  }
  return times;
}

// Of the begin and the end of a collective.
double record_us() {
  trace::FlightRecorder recorder;
  const std::string group = "tp";
  const std::vector<int64_t> ranks = {0, 1}, sizes = {4, 8, 16};
  Least least;
  for (int repeat = 0; repeat < 20; ++repeat) {
    least.add(microseconds(10000, [&] {
      recorder.end(recorder.begin({.kind = "all_reduce",
                                   .detail = "sum",
                                   .group = group,
                                   .ranks = ranks,
                                   .op = "aten::_scaled_dot_product_attention",
                                   .dtype = at::kFloat,
                                   .sizes = sizes,
                                   .tensors = 1,
                                   .bytes = 2048}),
                   false);
    }));
  }
  return least.value();
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  using namespace tessera::benchmarks;
  print_header("sum of float32, us", {"all_reduce", "reused", "kept", "scatter", "reuse/all", "kept/all", "scat/all"});
  for (int64_t ranks : {2, 4}) {
    for (int64_t kib : {64, 1024, 16384}) {
      print_row(std::to_string(ranks) + " ranks, " + std::to_string(kib) + " KiB", times_of(ranks, kib), "%10.2f");
    }
  }
  print_header("flight recorder, us", {"a record"});
  print_row("all_reduce", {record_us()});
}
