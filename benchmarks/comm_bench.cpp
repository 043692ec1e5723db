// How fast rank threads merge sums: all_reduce, and the exact merge of one node each, over 2 and 4 ranks.

#include <ATen/ATen.h>

#include "benchmarks/measure.h"
#include "tessera/comm/context.h"
#include "tessera/comm/exact_merge.h"
#include "tessera/comm/run_ranks.h"

namespace tessera::benchmarks {
namespace {

// The least time of `body(world, tensor)`, as rank 0 sees it.
template <typename Body>
double least_us(int64_t ranks, int64_t kib, const Body& body) {
  Least time;
  comm::run_ranks(ranks, [&](int64_t rank) {
    comm::Communicator& world = *comm::RankContext::require().world;
    at::Tensor tensor = at::zeros({kib * 256});
    for (int repeat = 0; repeat < 20; ++repeat) {
      world.barrier();
      const double one = microseconds(5, [&] { body(world, tensor); });
      if (rank == 0) time.add(one);
    }
  });
  return time.value();
}

void all_reduce(comm::Communicator& world, at::Tensor& tensor) { world.all_reduce(tensor, layout::ReduceOp::kSum)->wait(); }

// Each rank holds one of as many leaves.
void exact_merge(comm::Communicator& world, at::Tensor& tensor) {
  std::vector<std::vector<layout::Node>> nodes;
  for (int64_t i = 0; i < world.size(); ++i) nodes.push_back({{i, i + 1}});
  comm::merge_nodes(world, {{{world.rank(), world.rank() + 1}, tensor}}, nodes, {0, world.size()}, tensor);
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  using namespace tessera::benchmarks;
  print_header("sum of float32, us", {"all_reduce", "exact", "exact/all"});
  for (int64_t ranks : {2, 4}) {
    for (int64_t kib : {64, 1024, 16384}) {
      const double ordinary = least_us(ranks, kib, all_reduce), exact = least_us(ranks, kib, exact_merge);
      print_row(std::to_string(ranks) + " ranks, " + std::to_string(kib) + " KiB", {ordinary, exact, exact / ordinary}, "%10.2f");
    }
  }
}
