// What the first call of an operator on new shapes costs: nothing of it is cached.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/registry.h"

namespace tessera::benchmarks {
namespace {

constexpr int64_t kShapes = 300;

struct Operands {
  at::Tensor x, y, w, weight, bias;
};

struct Case {
  const char* name;
  void (*body)(const Operands&);
};

const Case kCases[] = {
    {"add", [](const Operands& o) { at::add(o.x, o.y); }},
    {"mm", [](const Operands& o) { at::mm(o.x, o.w); }},
    {"view", [](const Operands& o) { o.x.view({-1, 2, o.x.size(1) / 2}); }},
    {"sum", [](const Operands& o) { at::sum(o.x); }},
    {"layer_norm", [](const Operands& o) { at::layer_norm(o.x, {o.x.size(1)}, o.weight, o.bias); }},
};

// `size` is one that no operand had before; x is cut by rows, w by columns.
Operands operands_of(const layout::Mesh& mesh, int64_t size) {
  const auto make = [&](at::IntArrayRef sizes, layout::Placement first, layout::Placement second) {
    return dtensor::distribute(at::ones(sizes), mesh,
                               mesh.ndim() == 1 ? layout::Placements{first} : layout::Placements{first, second});
  };
  const layout::Placement whole = layout::Replicate(), rows = layout::Shard(0), columns = layout::Shard(1);
  const int64_t inner = 4 + 2 * size;
  return {make({8, inner}, rows, whole), make({8, inner}, rows, whole), make({inner, 8}, whole, columns),
          make({inner}, whole, whole), make({inner}, whole, whole)};
}

void time_mesh(const layout::Mesh& mesh) {
  print_header(mesh.str(), {"least us", "median us", "plain us"});
  int64_t size = 0;
  for (const Case& one : kCases) {
    std::vector<double> times;
    comm::run_fake(mesh.size(), 0, [&] {
      const at::NoGradGuard no_grad;
      for (int64_t i = 0; i < kShapes; ++i) {
        const Operands operands = operands_of(mesh, size++);
        times.push_back(microseconds(1, [&] { one.body(operands); }));
      }
    });
    Least plain;
    const at::NoGradGuard no_grad;
    const Operands operands{at::ones({4, 4}), at::ones({4, 4}), at::ones({4, 4}), at::ones({4}), at::ones({4})};
    for (int64_t i = 0; i < kShapes; ++i) {
      plain.add(microseconds(1, [&] { one.body(operands); }));
    }
    std::sort(times.begin(), times.end());
    print_row(one.name, {times.front(), times[times.size() / 2], plain.value()});
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  tessera::dtensor::ensure_registered();
  at::set_num_threads(1);
  for (const char* mesh : {"tp=2", "dp=2,tp=2"}) {
    tessera::benchmarks::time_mesh(tessera::layout::Mesh::parse(mesh));
  }
}
