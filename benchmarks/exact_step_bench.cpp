// A whole training step in `exact` and in `fast` numerics on a mesh of one, over the plain libtorch step of the same
// model; one thread. In bfloat16 the plain model is cast, optimizer and all; the placed one keeps float32 and computes
// in bfloat16.

#include <torch/torch.h>

#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/models/llama.h"
#include "tessera/optim/clip.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera::benchmarks {
namespace {

constexpr int kSteps = 6;

struct Size {
  const char* name;
  int64_t dim, hidden, layers, batch, length;
  bool is_fused;  // attention by scaled_dot_product_attention: libtorch's kernel, in `exact` ours by blocks
  at::ScalarType dtype = at::kFloat;
};

// About 3 M parameters with 1,024 tokens a step, and 11 M with 2,048.
const Size kSizes[] = {{"3 M, 1,024 tokens", 256, 688, 4, 8, 128, false},
                       {"  attention fused", 256, 688, 4, 8, 128, true},
                       {"11 M, 2,048 tokens", 384, 1024, 6, 8, 256, false},
                       {"  attention fused", 384, 1024, 6, 8, 256, true},
                       {"  ... bfloat16", 384, 1024, 6, 8, 256, true, at::kBFloat16}};

models::LlamaConfig config_of(const Size& size) {
  models::LlamaConfig config;
  config.vocab_size = 256, config.dim = size.dim, config.layers = size.layers, config.heads = 8, config.kv_heads = 8,
  config.hidden = size.hidden;
  config.max_seq = size.length, config.fused_attention = size.is_fused;
  return config;
}

at::Tensor some_tokens(const Size& size) {
  return at::arange(size.batch * size.length).mul(7).remainder(251).view({size.batch, size.length});
}

template <typename Step>
double least_ms(const Step& step) {
  Least least;
  for (int i = 0; i < kSteps; ++i) {
    least.add(microseconds(1, step) / 1e3);
  }
  return least.value();
}

double plain_step(const Size& size) {
  torch::manual_seed(1);
  models::LlamaConfig config = config_of(size);
  config.dtype = size.dtype;
  models::Llama model(config);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const at::Tensor tokens = some_tokens(size);
  return least_ms([&] {
    model->loss(tokens, tokens).backward();
    optim::clip_grad_norm(model->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
  });
}

double placed_step(const Size& size, dtensor::Numerics numerics) {
  double least = 0;
  comm::run_ranks(1, [&](int64_t) {
    at::set_num_threads(1);
    dtensor::manual_seed(1);
    dtensor::set_numerics(numerics);
    auto model = parallel::deferred([&] { return models::Llama(config_of(size)); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto plan = parallel::generate_plan(
        *model, {.mesh = layout::Mesh::parse("dp=1"), .precision = {.compute = size.dtype}, .heads = 8, .kv_heads = 8});
    parallel::place(*model, plan, &optimizer);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
      return model->loss(batch[0], batch[1]);
    });
    const at::Tensor tokens = some_tokens(size);
    least = least_ms([&] {
      job(tokens, tokens).backward();
      optim::clip_grad_norm(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    });
  });
  return least;
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  using namespace tessera::benchmarks;
  using tessera::dtensor::Numerics;
  at::set_num_threads(1);
  print_header("training step, ms", {"plain", "fast", "exact", "fast/pl", "exact/pl"});
  for (const Size& size : kSizes) {
    const double plain = plain_step(size), fast = placed_step(size, Numerics::kFast),
                 exact = placed_step(size, Numerics::kExact);
    print_row(size.name, {plain, fast, exact, fast / plain, exact / plain});
  }
}
