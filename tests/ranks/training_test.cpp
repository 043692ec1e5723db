// Both models, trained a few steps on many meshes: the curve, the gradients and the parameters of one device.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/comm/run_ranks.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera {
namespace {

struct Case {
  std::string mesh = "1";
  bool sequence_parallel = false;
  int64_t accumulate = 1;
  int64_t batch = 6;
  int64_t vocabulary = 64;
};

struct Curve {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

at::Tensor tokens(int64_t step, const Case& c) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  return at::randint(c.vocabulary, {c.batch, 13}, generator, at::kLong);
}

template <typename Model, typename Config>
Curve train(const Config& config, const Case& c, int64_t steps) {
  Curve curve;
  std::vector<at::Tensor> data;
  for (int64_t i = 0; i < steps; ++i) data.push_back(tokens(i, c));
  const auto mesh = layout::Mesh::parse(c.mesh);
  comm::run_ranks(mesh.size(), [&](int64_t rank) {
    dtensor::manual_seed(7);
    auto model = parallel::deferred([&] { return Model(config); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .sequence_parallel = c.sequence_parallel, .heads = 4, .kv_heads = 4});
    parallel::place(*model, plan, &optimizer);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.accumulate = c.accumulate});
    for (int64_t i = 0; i < steps; ++i) {
      const at::Tensor all = data[i];
      at::Tensor loss = job(all.slice(1, 0, 12).contiguous(), all.slice(1, 1, 13).contiguous());
      loss.backward();
      const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      const double value = loss.item().toDouble();
      if (rank == 0) curve.losses.push_back(value), curve.norms.push_back(norm);
    }
    for (const auto& item : model->named_parameters()) {
      const at::Tensor whole = dtensor::full_tensor(item.value().detach());
      if (rank == 0) curve.parameters[item.key()] = whole.clone();
    }
  });
  return curve;
}

double error(const at::Tensor& a, const at::Tensor& b) { return ((a - b).abs().max() / a.abs().max().clamp_min(1e-300)).item<double>(); }

template <typename Model, typename Config>
void expect_same(const Config& config, const Case& c, const Curve& one, int64_t steps, double tolerance) {
  SCOPED_TRACE(c.mesh + (c.sequence_parallel ? " sp" : "") + " accumulate " + std::to_string(c.accumulate));
  const Curve many = train<Model>(config, c, steps);
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(many.losses[i], one.losses[i], tolerance * std::abs(one.losses[i])) << "loss of step " << i;
    EXPECT_NEAR(many.norms[i], one.norms[i], tolerance * std::abs(one.norms[i])) << "norm of step " << i;
  }
  for (const auto& [name, value] : one.parameters) EXPECT_LE(error(value, many.parameters.at(name)), tolerance) << name;
}

models::LlamaConfig llama() {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.kv_heads = 4, config.hidden = 48, config.max_seq = 16;
  config.dtype = at::kDouble;
  return config;
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16, config.dropout = 0.1;
  config.dtype = at::kDouble;
  return config;
}

TEST(Training, LlamaIsOneDeviceTraining) {
  const int64_t steps = 3;
  const Curve one = train<models::Llama>(llama(), {}, steps);
  for (const Case& c : {Case{"dp=2"}, Case{"tp=2"}, Case{"dp=2,tp=2"}, Case{"dp=2,tp=2", true}, Case{"dp=2", false, 3}, Case{"tp=4"}, Case{"dp=4"}, Case{"tp=3"}}) {
    expect_same<models::Llama>(llama(), c, one, steps, 1e-11);
  }
}

TEST(Training, GptIsOneDeviceTraining) {
  const int64_t steps = 3;
  const Curve one = train<models::Gpt>(gpt(), {}, steps);
  for (const Case& c : {Case{"dp=2"}, Case{"tp=2"}, Case{"dp=2,tp=2"}, Case{"dp=2,tp=2", true}, Case{"dp=2", false, 3}, Case{"tp=4"}, Case{"dp=4"}, Case{"tp=3"}}) {
    expect_same<models::Gpt>(gpt(), c, one, steps, 1e-11);
  }
}

}  // namespace
}  // namespace tessera
