// One rank's training step on meshes of 8 to 8,192 ranks, its local work the same on all: the step must not get dearer.
// The first line is the one-device program on that rank's samples. An argument, such as `dp=N`, selects one kind of
// mesh.

#include <functional>
#include <memory>

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

constexpr int64_t kSamples = 2;  // of each data-parallel rank in a micro-batch
constexpr int64_t kSequence = 16;
constexpr int kSteps = 60;
constexpr int64_t kRanks[] = {8, 64, 512, 4096, 8192};

models::LlamaConfig small_llama() {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.kv_heads = 4, config.hidden = 48;
  config.max_seq = kSequence;
  return config;
}

struct Shape {
  std::string name;
  std::function<std::string(int64_t ranks)> mesh;
  int64_t accumulate = 1;
  bool sequence_parallel = false;
};

const Shape kShapes[] = {
    {"dp=N", [](int64_t n) { return "dp=" + std::to_string(n); }},
    {"dp=N/2,tp=2", [](int64_t n) { return "dp=" + std::to_string(n / 2) + ",tp=2"; }},
    {"dp=N/2,tp=2, sp", [](int64_t n) { return "dp=" + std::to_string(n / 2) + ",tp=2"; }, 1, true},
    {"dp=N/2,tp=2, sp, 3 micro", [](int64_t n) { return "dp=" + std::to_string(n / 2) + ",tp=2"; }, 3, true},
};

at::Tensor some_tokens(int64_t samples) {
  return at::arange(samples * kSequence).remainder(64).view({samples, kSequence});
}

void time_one_device() {
  models::Llama model(small_llama());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const at::Tensor tokens = some_tokens(kSamples);
  Least least;
  for (int step = 0; step < kSteps; ++step) {
    least.add(microseconds(1, [&] {
      model->loss(tokens, tokens).backward();
      optim::clip_grad_norm(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }));
  }
  print_row("one device, step us", {least.value()}, "%10.0f");
}

// A placed model with its optimizer on one rank of the imagined mesh.
class Training {
 public:
  Training(const Shape& shape, int64_t ranks)
      : mesh_(layout::Mesh::parse(shape.mesh(ranks))), samples_(mesh_.axis(0).size * kSamples * shape.accumulate) {
    dtensor::manual_seed(1);
    auto model = parallel::deferred([&] { return models::Llama(small_llama()); });
    optimizer_ = std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto plan = parallel::generate_plan(
        *model, {.mesh = mesh_, .sequence_parallel = shape.sequence_parallel, .heads = 4, .kv_heads = 4});
    parallel::place(*model, plan, optimizer_.get());
    const auto loss = [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); };
    job_ =
        std::make_unique<parallel::Job>(model.ptr(), plan, loss, parallel::JobOptions{.accumulate = shape.accumulate});
  }

  void step() {
    const auto rows = [](int64_t begin, int64_t end) {
      const at::Tensor tokens = some_tokens(end - begin);
      return std::vector<at::Tensor>{tokens, tokens};
    };
    at::Tensor loss = job_->run_rows(samples_, rows);
    loss.backward();
    optim::clip_grad_norm(job_->model().parameters(), 1.0);
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  layout::Mesh mesh_;
  int64_t samples_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::unique_ptr<parallel::Job> job_;
};

// The least step of each mesh, and the first; the meshes take turns so that what else the machine does meets all alike.
void time_shape(const Shape& shape) {
  std::vector<double> first, operators;
  std::vector<Least> steps(std::size(kRanks));
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < std::size(kRanks); ++i) {
      comm::run_fake(kRanks[i], kRanks[i] / 2, [&] {
        Training training(shape, kRanks[i]);
        const double cold = microseconds(1, [&] { training.step(); });
        const uint64_t before = comm::RankContext::require().program.count;
        training.step();
        if (round == 0) {
          first.push_back(cold),
              operators.push_back(static_cast<double>(comm::RankContext::require().program.count - before));
        }
        for (int step = 0; step < kSteps; ++step) {
          steps[i].add(microseconds(1, [&] { training.step(); }));
        }
      });
    }
  }
  std::vector<double> row, ratio;
  for (const Least& least : steps) {
    row.push_back(least.value()), ratio.push_back(least.value() / steps[0].value());
  }
  print_row(shape.name + ", step us", row, "%10.0f");
  print_row("  over that of 8 ranks", ratio);
  print_row("  first step us", first, "%10.0f");
  print_row("  operators", operators, "%10.0f");
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  using namespace tessera::benchmarks;
  at::set_num_threads(1);
  std::vector<std::string> columns;
  for (int64_t ranks : kRanks) {
    columns.push_back(std::to_string(ranks));
  }
  print_header("ranks", columns);
  time_one_device();
  for (const Shape& shape : kShapes) {
    if (argc < 2 || shape.name == argv[1]) {
      time_shape(shape);
    }
  }
}
