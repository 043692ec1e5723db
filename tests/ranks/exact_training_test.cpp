// The flagship: both models, 20 steps in `exact` numerics, the same bits on every layout.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/hash.h"
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
};

struct Setting {
  int64_t steps = 20, batch = 16, length = 16, vocabulary = 64;
  layout::Lattice lattice = {};
};

// What a run leaves: the bits of losses and norms, step by step, and of every parameter at the end.
struct Trace {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

at::Tensor tokens(const Setting& setting, int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  return at::randint(setting.vocabulary, {setting.batch, setting.length + 1}, generator, at::kLong);
}

int64_t kv_heads_of(const models::LlamaConfig& config) { return config.kv_heads; }
int64_t kv_heads_of(const models::GptConfig& config) { return config.heads; }

template <typename Model, typename Config>
Trace train(const Setting& setting, const Config& config, const Case& c) {
  Trace trace;
  std::vector<at::Tensor> data;
  for (int64_t i = 0; i < setting.steps; ++i) data.push_back(tokens(setting, i));
  const auto mesh = layout::Mesh::parse(c.mesh);
  comm::run_ranks(mesh.size(), [&](int64_t rank) {
    dtensor::manual_seed(7);
    dtensor::set_numerics(dtensor::Numerics::kExact, setting.lattice);
    auto model = parallel::deferred([&] { return Model(config); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .sequence_parallel = c.sequence_parallel, .heads = config.heads,
                                                       .kv_heads = kv_heads_of(config), .lattice = setting.lattice});
    parallel::place(*model, plan, &optimizer);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.accumulate = c.accumulate});
    for (int64_t i = 0; i < setting.steps; ++i) {
      const at::Tensor all = data[i];
      at::Tensor loss = job(all.slice(1, 0, setting.length).contiguous(), all.slice(1, 1, setting.length + 1).contiguous());
      loss.backward();
      const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      const double value = loss.item().toDouble();
      if (rank == 0) trace.losses.push_back(value), trace.norms.push_back(norm);
    }
    for (const auto& item : model->named_parameters()) {
      const at::Tensor whole = dtensor::full_tensor(item.value().detach());
      if (rank == 0) trace.parameters[item.key()] = whole.clone();
    }
  });
  return trace;
}

// The first thing that differs; empty if nothing does.
std::string difference(const Trace& a, const Trace& b) {
  for (size_t i = 0; i < a.losses.size(); ++i) {
    if (a.losses[i] != b.losses[i]) return c10::str("loss of step ", i, ": ", a.losses[i], " and ", b.losses[i]);
    if (a.norms[i] != b.norms[i]) return c10::str("norm of step ", i, ": ", a.norms[i], " and ", b.norms[i]);
  }
  for (const auto& [name, value] : a.parameters) {
    if (!at::equal(value, b.parameters.at(name))) return name;
  }
  return "";
}

template <typename Model, typename Config>
void expect_same_bits(const Setting& setting, const Config& config, const std::vector<Case>& cases) {
  const Trace one = train<Model>(setting, config, {});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.mesh + (c.sequence_parallel ? " sp" : "") + " accumulate " + std::to_string(c.accumulate));
    try {
      EXPECT_EQ(difference(one, train<Model>(setting, config, c)), "");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

models::LlamaConfig llama() {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 64, config.layers = 2, config.heads = 8, config.kv_heads = 8, config.hidden = 96, config.max_seq = 16;
  return config;
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 64, config.layers = 2, config.heads = 8, config.max_seq = 16, config.dropout = 0.1;
  return config;
}

const std::vector<Case> kCases = {
    {"dp=2"}, {"tp=2"}, {"dp=3"}, {"tp=3"}, {"dp=4"}, {"tp=4"}, {"dp=2,tp=2"}, {"1", false, 2}, {"1", false, 3}, {"dp=2", false, 4}, {"1", false, 16},
    {"dp=8"}, {"tp=8"}, {"dp=3,tp=2", false, 2}, {"dp=2,tp=4"}};

// A vocabulary and a batch that nothing divides, grouped heads, a tied head: three leaves a micro-batch are cut into.
TEST(Exact, OddSizesGroupedHeadsAndATiedHead) {
  models::LlamaConfig config = llama();
  config.vocab_size = 101, config.kv_heads = 4, config.tie_embeddings = true;
  expect_same_bits<models::Llama>({.batch = 13, .vocabulary = 101}, config,
                                  {{"dp=2"}, {"tp=2"}, {"dp=3"}, {"tp=4"}, {"dp=2,tp=2", false, 3}, {"1", false, 5}, {"dp=4", false, 2}, {"1", false, 13}});
}

TEST(Exact, SequenceParallel) {
  const Setting setting = {.lattice = {.batch = 8, .sequence = 8, .feature = 8}};
  const std::vector<Case> cases = {{"tp=2"}, {"tp=2", true}, {"tp=4", true}, {"dp=2,tp=2", true, 2}, {"tp=8", true}, {"1", false, 3}};
  expect_same_bits<models::Llama>(setting, llama(), cases);
  expect_same_bits<models::Gpt>(setting, gpt(), cases);
}

TEST(Exact, Llama) { expect_same_bits<models::Llama>({}, llama(), kCases); }
TEST(Exact, Gpt) { expect_same_bits<models::Gpt>({}, gpt(), kCases); }

}  // namespace
}  // namespace tessera
