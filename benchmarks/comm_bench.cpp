// How fast rank threads merge: all_reduce over 2 and 4 ranks.

#include <ATen/ATen.h>

#include "benchmarks/measure.h"
#include "tessera/comm/context.h"
#include "tessera/comm/run_ranks.h"

int main() {
  using namespace tessera;
  using namespace tessera::benchmarks;
  print_header("all_reduce(sum), float32", {"us", "GB/s"});
  for (int64_t ranks : {2, 4}) {
    for (int64_t kib : {64, 1024, 16384}) {
      Least time;
      comm::run_ranks(ranks, [&](int64_t rank) {
        comm::Communicator& world = *comm::RankContext::require().world;
        at::Tensor tensor = at::zeros({kib * 256});
        for (int repeat = 0; repeat < 20; ++repeat) {
          world.barrier();
          const double one = microseconds(5, [&] { world.all_reduce(tensor, layout::ReduceOp::kSum)->wait(); });
          if (rank == 0) time.add(one);
        }
      });
      print_row(std::to_string(ranks) + " ranks, " + std::to_string(kib) + " KiB", {time.value(), static_cast<double>(kib) * 1.024 / time.value()});
    }
  }
}
