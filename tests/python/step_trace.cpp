// The operators of one training step by `Job`, for a test in Python: JSON, one object for each mesh and numerics, with
// what `explain` saw on every rank.
//
//   step_trace MESH...      (dp=2 tp=2)
#include <iostream>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/watch/explain.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera {
namespace {

using sums::Lattice;
using layout::Mesh;

constexpr int64_t kWords = 16, kSamples = 8;

// Words in, their loss out; step_trace_test.py has the same. `at::linear` is what Python's nn.Linear calls: libtorch's
// in C++ multiplies with the transposed weight and adds the bias in place.
struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(kWords, 8));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(8, 32));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(32, kWords));

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& labels) {
    const at::Tensor hidden = at::tanh(at::linear(norm(table(ids)), up->weight, up->bias));
    const at::Tensor scores = at::linear(hidden, down->weight, down->bias).flatten(0, 1);
    return at::cross_entropy_loss(scores, labels.flatten());
  }
};
TORCH_MODULE(Net);

Net make_net() {
  Net net;
  const at::NoGradGuard no_grad;
  int64_t index = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.copy_(
        at::sin(at::arange(parameter.numel()) * 0.1 + static_cast<double>(++index)).view(parameter.sizes()));
  }
  return net;
}

at::Tensor words(int64_t stride) { return (at::arange(kSamples * 3) * stride % kWords).view({kSamples, 3}); }

nlohmann::json trace_of(const Mesh& mesh, dtensor::Numerics numerics) {
  const bool is_exact = numerics == dtensor::Numerics::kExact;
  nlohmann::json result = {{"mesh", mesh.str()}, {"numerics", is_exact ? "exact" : "fast"}};
  std::vector<nlohmann::json> of_rank(static_cast<size_t>(mesh.size()));
  comm::run_ranks(mesh.size(), [&](int64_t rank) {
    const Lattice lattice = {.batch = kSamples};
    dtensor::set_numerics(numerics, lattice);
    Net net = make_net();
    const auto plan = parallel::generate_plan(*net, {.mesh = mesh, .lattice = lattice});
    auto job = parallel::parallelize(net, plan);
    watch::Explain explain;
    const at::Tensor loss = job(words(5), words(7));
    explain.stop();
    const auto calls = nlohmann::json::parse(explain.report().json()).at("calls");
    of_rank[static_cast<size_t>(rank)] = {
        {"plan", plan.json()}, {"calls", calls}, {"loss", dtensor::full_tensor(loss.detach()).item<double>()}};
  });
  result["ranks"] = of_rank;
  return result;
}

}  // namespace
}  // namespace tessera

int main(int count, char** meshes) {
  nlohmann::json all = nlohmann::json::array();
  for (int i = 1; i < count; ++i) {
    for (const auto numerics : {tessera::dtensor::Numerics::kFast, tessera::dtensor::Numerics::kExact}) {
      all.push_back(tessera::trace_of(tessera::layout::Mesh::parse(meshes[i]), numerics));
    }
  }
  std::cout << all.dump() << "\n";
}
