// A small training in C++ for compare_test.py, as a user writes one; the argument plants a fault.
//
//   compare_program [rule|plan|batch|numerics=exact]...
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "tessera/comm/core/context.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace {

using namespace tessera;

constexpr int64_t kWords = 16, kRows = 8, kLength = 3;
std::vector<std::string> arguments;

bool has(const std::string& fault) { return std::find(arguments.begin(), arguments.end(), fault) != arguments.end(); }

// An operator of the program's own: each rank works on its part.
at::Tensor gain(const at::Tensor& x) {
  const auto& mesh = dtensor::spec_of(x)->mesh;
  auto part = dtensor::to_local(dtensor::redistribute(x.detach(), "{dp: S(0), tp: S(2)}")) * 1.5;
  if (has("rule")) {
    part = part * (static_cast<double>(part.numel()) / static_cast<double>(x.numel()));
  }
  const auto* given = has("plan") ? "{dp: S(0), tp: S(2/2)}" : "{dp: S(0), tp: S(2)}";
  return dtensor::from_local(part, mesh, layout::parse_placements(mesh, given), x.sizes().vec());  // LINE rule
}

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(kWords, 8));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(8, 32));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(32, kWords));

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) {
    auto x = at::tanh(at::linear(table(ids), up->weight, up->bias));
    x = x + gain(x);
    const auto scores = at::linear(x, down->weight, down->bias);
    return at::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
  }
};
TORCH_MODULE(Net);

// The rows of this data rank; with the fault, from the second step on, those from half as far on.
at::Tensor own_rows(const at::Tensor& rows, const layout::Mesh& mesh, int64_t step) {
  const auto axis = mesh.axis_index("dp");
  const auto count = rows.size(0) / mesh.axis(axis).size;
  const auto begin = mesh.coord_of(comm::RankContext::require().rank)->at(static_cast<size_t>(axis)) * count;
  return rows.narrow(0, has("batch") && step >= 1 ? begin / 2 : begin, count);
}

at::Tensor words(int64_t stride) { return (at::arange(kRows * kLength) * stride % kWords).view({kRows, kLength}); }

void train() {
  if (has("numerics=exact")) {
    dtensor::set_numerics(dtensor::Numerics::kExact);
  }
  Net net;
  net->to(at::kDouble);
  const auto plan = parallel::generate_plan(*net, {.mesh = layout::Mesh::parse("dp=2,tp=2")});
  auto optimizer = torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto job = parallel::parallelize(net, plan, optimizer, {.batch = parallel::Batch::kLocal});
  for (int64_t step = 0; step < 3; ++step) {
    const auto ids = own_rows(words(5 + 2 * step), plan.mesh, step), targets = own_rows(words(7), plan.mesh, step);
    auto loss = job(ids, targets);  // LINE batch
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    const auto value = loss.item<double>();
    if (comm::RankContext::require().rank == 0) {
      std::cout << "step " << step + 1 << " loss " << value << "\n";
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  arguments.assign(argv + 1, argv + argc);
  at::manual_seed(0);
  tessera::comm::run_ranks(4, [] { train(); });
  return 0;
}
