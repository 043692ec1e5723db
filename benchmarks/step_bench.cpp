// A whole training step in numerics `fast`, over the plain libtorch step of the same model: one rank, then ranks as
// threads that share the device and do what one did.
//
// bench_step [cuda]  on the CPU or on the GPU, where small models are bound by what the host gives it and large ones by
//                    what it does

#include <string_view>

#include <torch/torch.h>

#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/models/llama.h"
#include "tessera/optim/clip.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera::benchmarks {
namespace {

constexpr int kRepeats = 6;
constexpr int64_t kRows = 8;

// What is measured: on the CPU less of it.
struct Sizes {
  at::Device device;
  std::vector<int64_t> widths;
  int64_t length;  // of each of 8 rows
  int steps;       // in a row
};

models::Llama model_of(const Sizes& sizes, int64_t dim) {
  models::LlamaConfig config;
  config.vocab_size = 1024, config.dim = dim, config.layers = 8, config.heads = 8, config.kv_heads = 8;
  config.hidden = 4 * dim, config.max_seq = 256, config.fused_attention = false;
  models::Llama model(config);
  model->to(sizes.device);
  return model;
}

at::Tensor some_tokens(const Sizes& sizes) {
  return at::arange(kRows * sizes.length, sizes.device).mul(7).remainder(1021).view({kRows, sizes.length});
}

// Milliseconds of a step, of several in a row until the device is done with them.
template <typename Loss>
double least_ms(const Sizes& sizes, models::Llama& model, const Loss& loss) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  Least least;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    least.add(microseconds(1,
                           [&] {
                             at::Tensor last;
                             for (int step = 0; step < sizes.steps; ++step) {
                               last = loss();
                               last.backward();
                               optim::clip_grad_norm(model->parameters(), 1.0);
                               optimizer.step();
                               optimizer.zero_grad();
                             }
                             last.item<double>();
                           }) /
              1e3 / sizes.steps);
  }
  return least.value();
}

double plain_ms(const Sizes& sizes, int64_t dim) {
  auto model = model_of(sizes, dim);
  const at::Tensor tokens = some_tokens(sizes);
  return least_ms(sizes, model, [&] { return model->loss(tokens, tokens); });
}

double placed_ms(const Sizes& sizes, int64_t dim, const char* text) {
  const auto mesh = layout::Mesh::parse(text);
  return comm::run_ranks(mesh.size(), [&] {
    at::set_num_threads(1);  // as the plain one has
    auto model = model_of(sizes, dim);
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .heads = 8, .kv_heads = 8});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
      return model->loss(batch[0], batch[1]);
    });
    const at::Tensor tokens = some_tokens(sizes);
    return least_ms(sizes, model, [&] { return job(tokens, tokens); });
  });
}

void run(const Sizes& sizes) {
  print_header("width, 8 layers, " + std::to_string(kRows * sizes.length) + " tokens",
               {"plain ms", "dp=1", "dp=2", "tp=2", "fsdp=2"});
  for (const int64_t dim : sizes.widths) {
    print_row(std::to_string(dim), {plain_ms(sizes, dim), placed_ms(sizes, dim, "dp=1"), placed_ms(sizes, dim, "dp=2"),
                                    placed_ms(sizes, dim, "tp=2"), placed_ms(sizes, dim, "fsdp=2")});
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc > 1 && std::string_view(argv[1]) == "cuda") {
    tessera::benchmarks::run({.device = at::kCUDA, .widths = {128, 512, 1024, 2048}, .length = 256, .steps = 10});
  } else {
    tessera::benchmarks::run({.device = at::kCPU, .widths = {64, 128, 256}, .length = 16, .steps = 4});
  }
  return 0;
}
