// What a planned redistribution costs: beside its communication, which the fake communicator leaves out, and with that
// of rank threads.
//
// bench_redistribute             times; bench_redistribute --instructions (under callgrind, by
// tools/bench_instructions.py) writes the instructions of each case on the fake communicator to a dump named after it.

#include <string_view>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/instructions.h"
#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/registry.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::benchmarks {
namespace {

constexpr int64_t kCalls = 50;

struct Case {
  std::string from, to;

  std::string name() const { return from + " -> " + to; }
};

// All pairs on the axis tp; where there is another axis, also what takes an exchange over both.
std::vector<Case> cases_on(const layout::Mesh& mesh) {
  const std::vector<std::string> placements = {"R", "S(0)", "S(1)", "P(sum)"};
  std::vector<Case> all;
  for (const std::string& from : placements) {
    for (const std::string& to : placements) {
      if (from != to) {
        all.push_back({"{tp: " + from + "}", "{tp: " + to + "}"});
      }
    }
  }
  if (mesh.ndim() > 1) {
    all.push_back({"{dp: S(0), tp: S(1)}", "{dp: S(1), tp: S(0)}"});
  }
  return all;
}

// A part of the calling rank, and where it goes.
class Moving {
 public:
  Moving(const layout::Mesh& mesh, const Case& one, c10::IntArrayRef sizes)
      : from_(layout::Spec::contiguous(mesh, layout::parse_placements(mesh, one.from), sizes, at::kFloat)),
        to_(from_.with(layout::parse_placements(mesh, one.to))),
        local_(at::ones(from_.local_sizes(state_.ctx.coord(mesh)))) {}

  void operator()() const {
    dtensor::run_move(state_.ctx, *state_.engine.moves.find_or_plan(from_, to_), local_, "bench");
  }

 private:
  dtensor::RankState& state_ = dtensor::RankState::require();
  layout::Spec from_, to_;
  at::Tensor local_;
};

void time_on_fake(const layout::Mesh& mesh, c10::IntArrayRef sizes) {
  print_header(c10::str(mesh.str(), " ", sizes), {"first us", "cached us"});
  comm::run_fake(mesh.size(), 0, [&] {
    for (const Case& one : cases_on(mesh)) {
      const Moving move(mesh, one, sizes);
      const double first = microseconds(1, move);
      Least cached;
      for (int repeat = 0; repeat < 100; ++repeat) {
        cached.add(microseconds(kCalls, move));
      }
      print_row(one.name(), {first, cached.value()});
    }
  });
}

void time_on_threads(const layout::Mesh& mesh, c10::IntArrayRef sizes) {
  print_header(c10::str(mesh.str(), " threads ", sizes), {"cached us"});
  comm::run_ranks(mesh.size(), [&](int64_t rank) {
    for (const Case& one : cases_on(mesh)) {
      const Moving move(mesh, one, sizes);
      Least cached;
      for (int repeat = 0; repeat < 40; ++repeat) {
        cached.add(microseconds(kCalls, move));
      }
      if (rank == 0) {
        print_row(one.name(), {cached.value()});
      }
    }
  });
}

void count_on_fake(const layout::Mesh& mesh, c10::IntArrayRef sizes) {
  comm::run_fake(mesh.size(), 0, [&] {
    for (const Case& one : cases_on(mesh)) {
      const Moving move(mesh, one, sizes);
      move();
      count_instructions(c10::str(mesh.str(), " ", sizes, "/", one.name()), kCalls, move);
    }
  });
}

int run(bool instructions) {
  dtensor::ensure_registered();
  at::set_num_threads(1);
  const auto line = layout::Mesh::parse("tp=2"), square = layout::Mesh::parse("dp=2,tp=2"),
             eight = layout::Mesh::parse("tp=8");
  if (instructions) {
    std::printf("calls %ld\n", static_cast<long>(kCalls));
    count_on_fake(line, {8, 8});
    count_on_fake(line, {7, 5});
    count_on_fake(eight, {32, 32});
    count_on_fake(square, {8, 8});
    return 0;
  }
  time_on_fake(line, {8, 8});
  time_on_fake(line, {7, 5});
  time_on_fake(eight, {32, 32});
  time_on_fake(square, {8, 8});
  time_on_threads(line, {8, 8});
  time_on_threads(line, {511, 1025});
  time_on_threads(line, {2048, 2048});
  return 0;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  return tessera::benchmarks::run(argc > 1 && std::string_view(argv[1]) == "--instructions");
}
