// What a planned redistribution costs beside its communication, which the fake communicator leaves out.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/registry.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::benchmarks {
namespace {

const char* const kPlacements[] = {"R", "S(0)", "S(1)", "P(sum)"};

// All pairs on the axis tp of a mesh; the local parts have 16 elements or less.
void time_pairs(const layout::Mesh& mesh) {
  print_header(mesh.str(), {"first us", "cached us"});
  comm::run_fake(mesh.size(), 0, [&] {
    dtensor::RankState& state = dtensor::RankState::require();
    const auto placed = [&](const char* text) {
      return layout::parse_placements(mesh, std::string("{tp: ") + text + "}");
    };
    for (const char* from_text : kPlacements) {
      for (const char* to_text : kPlacements) {
        if (from_text == to_text) {
          continue;
        }
        const auto from = layout::Spec::contiguous(mesh, placed(from_text), {4, 4}, at::kFloat),
                   to = from.with(placed(to_text));
        const at::Tensor local = at::ones(from.local_sizes(state.ctx.coord(mesh)));
        const auto move = [&] {
          dtensor::run_move(state.ctx, *state.engine.moves.find_or_plan(from, to), local, "bench");
        };
        const double first = microseconds(1, move);
        Least cached;
        for (int repeat = 0; repeat < 100; ++repeat) {
          cached.add(microseconds(50, move));
        }
        print_row(std::string(from_text) + " -> " + to_text, {first, cached.value()});
      }
    }
  });
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  using namespace tessera;
  dtensor::ensure_registered();
  at::set_num_threads(1);
  for (const char* mesh : {"tp=2", "dp=2,tp=2"}) {
    benchmarks::time_pairs(layout::Mesh::parse(mesh));
  }
}
