// What a rank pays to draw its part of a tensor as plain libtorch does: skipping a word of the stream, and filling one
// of n equal cuts of a tensor against drawing all of it.

#include <cstdio>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "benchmarks/measure.h"
#include "tessera/random/mt19937.h"
#include "tessera/random/stock_cpu.h"

namespace tessera::benchmarks {
namespace {

double least_ns(double values, const std::function<void()>& body) {
  Least least;
  for (int repeat = 0; repeat < 7; ++repeat) {
    least.add(microseconds(1, body));
  }
  return least.value() * 1e3 / values;
}

void words() {
  constexpr int64_t kCount = int64_t{1} << 25;
  at::mt19937 engine(1);
  uint32_t all = 0;
  const double drawn = least_ns(kCount, [&] {
    for (int64_t i = 0; i < kCount; ++i) {
      all ^= engine();
    }
  });
  const double skipped = least_ns(kCount, [&] { random::skip(engine, kCount); });
  std::printf("a word of the stream: drawn %.2f ns, skipped %.2f ns (%08x)\n\n", drawn, skipped, all);
}

void fills(const char* name, const random::StockDraw& draw) {
  constexpr int64_t kRows = 4096, kColumns = 2048;
  const random::StockTensor tensor{{kRows, kColumns}, {kColumns, 1}, at::kFloat};
  at::Generator generator = at::detail::createCPUGenerator(1);
  at::Tensor whole = at::empty({kRows, kColumns});
  const double libtorch = least_ns(kRows * kColumns, [&] { draw.fill(whole, generator); });
  std::printf("%-10s libtorch %5.2f", name, libtorch);
  for (const int64_t ranks : {1, 2, 8, 64}) {
    at::Tensor rows = at::empty({kRows / ranks, kColumns}), columns = at::empty({kRows, kColumns / ranks});
    const int64_t row = (ranks - 1) * kRows / ranks, column = (ranks - 1) * kColumns / ranks;
    const double by_rows =
        least_ns(kRows * kColumns, [&] { fill_stock(rows, tensor, {{row, kRows}, {0, kColumns}}, draw, generator); });
    const double by_columns = least_ns(
        kRows * kColumns, [&] { fill_stock(columns, tensor, {{0, kRows}, {column, kColumns}}, draw, generator); });
    std::printf(" | 1/%-2d %5.2f %5.2f", static_cast<int>(ranks), by_rows, by_columns);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  at::set_num_threads(1);
  tessera::benchmarks::words();
  std::printf(
      "ns for an element of the whole float32[4096, 2048]: libtorch's own fill, then a rank's part, cut by rows and by "
      "columns\n");
  using T = at::Tensor&;
  using G = const at::Generator&;
  tessera::benchmarks::fills("uniform_", {[](T x, G g) { x.uniform_(0, 1, g); }});
  tessera::benchmarks::fills("normal_", {[](T x, G g) { x.normal_(0, 1, g); }, true});
  tessera::benchmarks::fills("bernoulli_", {[](T x, G g) { x.bernoulli_(0.1, g); }});
  return 0;
}
