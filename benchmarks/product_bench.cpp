// The canonical product against at::mm on one thread: billions of floating-point operations a second, and the ratio of
// times. In float32, and of 16-bit numbers with sums in float32 (mm's result is of 16 bits).

#include <cmath>
#include <cstdlib>
#include <type_traits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include "benchmarks/measure.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/product/product.h"
#include "tessera/sums/lattice.h"

namespace tessera::benchmarks {
namespace {

using kernels::Isa;

// N: as stored. T: stored transposed, as the weight of linear (NT) and the input of a weight gradient (TN).
struct Shape {
  const char* layout;
  int64_t m, n, k;

  std::string str() const { return c10::str(layout, " ", m, ",", n, ",", k); }
};

std::vector<Shape> training_shapes() {
  std::vector<Shape> shapes;
  for (int64_t size : {64, 96, 128, 192, 256, 384, 512, 768, 1024}) {
    shapes.push_back({"NN", size, size, size});
  }
  const std::vector<std::array<int64_t, 3>> sizes = {{512, 256, 1024}, {512, 1024, 256}, {256, 256, 2048},
                                                     {2048, 256, 256}, {128, 512, 512},  {1024, 1024, 4096},
                                                     {1000, 333, 777}};
  for (const char* layout : {"NN", "NT", "TN"}) {
    for (const auto& [m, n, k] : sizes) {
      shapes.push_back({layout, m, n, k});
    }
  }
  return shapes;
}

std::vector<Shape> small_shapes() {
  std::vector<Shape> shapes;
  for (const char* layout : {"NN", "NT", "TN"}) {
    for (int64_t m : {1, 2, 4, 8}) {
      shapes.push_back({layout, m, 512, 512});
    }
    shapes.push_back({layout, 512, 8, 512});
    shapes.push_back({layout, 512, 1, 512});
    shapes.push_back({layout, 1, 4096, 1024});
    for (int64_t size : {8, 16, 32}) {
      shapes.push_back({layout, size, size, size});
    }
  }
  return shapes;
}

template <typename T>
class Case {
 public:
  explicit Case(const Shape& shape) : shape_(shape) {
    const auto values = [](int64_t rows, int64_t columns, char layout) {
      const at::Tensor x = layout == 'N' ? at::rand({rows, columns}) : at::rand({columns, rows});
      const at::Tensor narrow = x.sub_(.5).to(c10::CppTypeToScalarType<T>::value);
      return layout == 'N' ? narrow : narrow.t();
    };
    a_ = values(shape.m, shape.k, shape.layout[0]);
    b_ = values(shape.k, shape.n, shape.layout[1]);
    stock_ = at::empty({shape.m, shape.n}, a_.options());
    out_ = at::empty({shape.m, shape.n});
  }

  void run_stock() { at::mm_out(stock_, a_, b_); }

  void run_ours(int64_t leaves) {
    const auto in = [](const at::Tensor& x) {
      return kernels::Matrices<const T>{x.const_data_ptr<T>(), x.stride(0), x.stride(1)};
    };
    kernels::run_product(kernels::Product<T, float>{.m = shape_.m,
                                                    .n = shape_.n,
                                                    .k = shape_.k,
                                                    .a = in(a_),
                                                    .b = in(b_),
                                                    .out = {out_.mutable_data_ptr<float>(), shape_.n, 1},
                                                    .leaf = sums::leaf_length(shape_.k, leaves)});
  }

  double work() const {
    return 2e-3 * static_cast<double>(shape_.m) * static_cast<double>(shape_.n) * static_cast<double>(shape_.k);
  }

 private:
  Shape shape_;
  at::Tensor a_, b_, stock_, out_;
};

// The least time of many repeats in turn, so that all columns see the same minutes of the machine.
std::vector<double> time_in_turn(double budget_us, const std::vector<std::function<void()>>& bodies) {
  std::vector<Least> least(bodies.size());
  double spent = 0;
  for (int64_t repeat = 0; repeat < 5 || spent < budget_us; ++repeat) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const double once = microseconds(1, bodies[i]);
      const auto calls = static_cast<int64_t>(std::max(1., 20 / once));
      const double time = calls == 1 ? once : microseconds(calls, bodies[i]);
      least[i].add(time);
      spent += once + time * static_cast<double>(calls);
    }
  }
  std::vector<double> result;
  for (const Least& value : least) {
    result.push_back(value.value());
  }
  return result;
}

// The instruction sets on which products of T are not those of the one before.
template <typename T>
std::vector<Isa> isas_of() {
  std::vector<Isa> isas = kernels::supported_isas();
  if (!std::is_same_v<T, c10::BFloat16>) {
    std::erase(isas, Isa::kAvx512Bf16);
  }
  return isas;
}

template <typename T>
void print_table(const std::string& title, const std::vector<Shape>& shapes, double budget_us) {
  const std::vector<Isa> isas = isas_of<T>();
  std::vector<std::string> columns = {"mm GF/s"};
  for (size_t i = 1; i < isas.size(); ++i) {
    for (const char* what : {" L=1", " L=8", " mm/L=8"}) {
      columns.push_back(std::string(" ") + kernels::name_of(isas[i]) + what);
    }
  }
  std::printf("%-20s", title.c_str());
  for (const auto& column : columns) {
    std::printf("%20s", column.c_str());
  }
  std::printf("\n");
  std::vector<double> logs(isas.size());
  for (const Shape& shape : shapes) {
    Case<T> test(shape);
    std::vector<std::function<void()>> bodies = {[&] { test.run_stock(); }};
    for (size_t i = 1; i < isas.size(); ++i) {
      for (int64_t leaves : {1, 8}) {
        bodies.push_back([&, i, leaves] {
          const kernels::ScopedIsa scope(isas[i]);
          test.run_ours(leaves);
        });
      }
    }
    const auto times = time_in_turn(budget_us, bodies);
    std::printf("%-20s%20.1f", shape.str().c_str(), test.work() / times[0]);
    for (size_t i = 1; i < isas.size(); ++i) {
      std::printf("%20.1f%20.1f%20.2f", test.work() / times[2 * i - 1], test.work() / times[2 * i],
                  times[0] / times[2 * i]);
      logs[i] += std::log(times[0] / times[2 * i]);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  for (size_t i = 1; i < isas.size(); ++i) {
    std::printf("geometric mean of mm/L=8, %s: %.3f\n", kernels::name_of(isas[i]),
                std::exp(logs[i] / static_cast<double>(shapes.size())));
  }
}

#if defined(__x86_64__)

// Rounds of 12 independent fused multiply-adds that touch no memory.
#define TESSERA_FMA_ROUNDS(REGISTER)                                                                                 \
  asm volatile(                                                                                                      \
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12\n vpxor %%xmm\\i, %%xmm\\i, %%xmm\\i\n .endr\n"                           \
      "1: .irp i,1,2,3,4,5,6,7,8,9,10,11,12\n"                                                                       \
      "vfmadd231ps %%" REGISTER "0, %%" REGISTER "0, %%" REGISTER "\\i\n .endr\n dec %0\n jnz 1b"                    \
      : "+r"(rounds)::"cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12")

// What the processor can do at most: the ceiling of every column.
void print_peaks() {
  for (Isa isa : isas_of<float>()) {
    if (isa == Isa::kScalar) {
      continue;
    }
    const int64_t lanes = isa == Isa::kAvx2 ? 8 : 16, count = 20000;
    Least least;
    for (int repeat = 0; repeat < 100; ++repeat) {
      least.add(microseconds(1, [&] {
        int64_t rounds = count;
        if (isa == Isa::kAvx2) {
          TESSERA_FMA_ROUNDS("ymm");
        } else {
          TESSERA_FMA_ROUNDS("zmm");
        }
      }));
    }
    std::printf("peak of %s: %.1f GF/s\n", kernels::name_of(isa),
                1e-3 * static_cast<double>(2 * lanes * 12 * count) / least.value());
  }
}

#else

void print_peaks() {}

#endif

}  // namespace
}  // namespace tessera::benchmarks

// `bench_product <seconds per shape> <table>`, 0.5 and all tables by default: float32, small, bfloat16, float16.
int main(int argc, char** argv) {
  using namespace tessera::benchmarks;
  at::set_num_threads(1);
  const double budget_us = 1e6 * (argc > 1 ? std::atof(argv[1]) : 0.5);
  const std::string only = argc > 2 ? argv[2] : "";
  const auto is_asked = [&](const char* table) { return only.empty() || only == table; };
  print_peaks();
  if (is_asked("float32")) {
    print_table<float>("float32", training_shapes(), budget_us);
  }
  if (is_asked("small")) {
    print_table<float>("small", small_shapes(), budget_us / 4);
  }
  if (is_asked("bfloat16")) {
    print_table<c10::BFloat16>("bfloat16", training_shapes(), budget_us / 2);
  }
  if (is_asked("float16")) {
    print_table<c10::Half>("float16", training_shapes(), budget_us / 4);
  }
}
