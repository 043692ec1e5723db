// Parameters that are stored in one dtype and read in another: the bits of a model in 16 bits on one rank, those of one
// rank on every layout in `exact`, and half of the bytes.

#include <filesystem>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"

namespace tessera::ranks::precision_test {
namespace {

using plan::Precision;
using plan::Sharding;

models::LlamaConfig llama(at::ScalarType dtype = at::kFloat) {
  models::LlamaConfig config;
  config.vocab_size = 101, config.dim = 48, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.hidden = 80, config.max_seq = 16, config.dtype = dtype;
  return config;
}

models::GptConfig gpt(at::ScalarType dtype = at::kFloat) {
  models::GptConfig config;
  config.vocab_size = 101, config.dim = 48, config.layers = 2, config.heads = 4, config.max_seq = 16;
  config.dropout = 0, config.tie_embeddings = false, config.dtype = dtype;
  return config;
}

// The loss and the gradients by name, in float32.
struct Step {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

template <typename Model>
Step step_of(Model& model) {
  const at::Tensor tokens = tokens_of({.batch = 4, .vocabulary = 101}, 0);
  const at::Tensor loss = model->loss(tokens.slice(1, 0, 16).contiguous(), tokens.slice(1, 1, 17).contiguous());
  loss.backward();
  Step step{.loss = loss.detach(), .gradients = {}};
  for (const auto& item : model->named_parameters()) {
    step.gradients[item.key()] = item.value().grad().to(at::kFloat);
  }
  return step;
}

// A model in 16 bits on plain libtorch, and one that is stored in float32 and read in 16 bits on one rank.
template <typename Model, typename Config>
void expect_bits_of_cast_model(const Config& config, at::ScalarType dtype) {
  torch::manual_seed(3);
  Model plain(config), stored(config);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : stored->named_parameters()) {
      item.value().copy_(plain->named_parameters()[item.key()]);
    }
  }
  plain->to(dtype);
  at::set_num_threads(comm::threads_per_rank(1));  // the derivatives of norms are cut where the part of a thread ends
  const Step expected = step_of(plain);
  run_on(Mesh::parse("1"), [&](int64_t) {
    const auto plan = parallel::generate_plan(*stored, {.mesh = Mesh::parse("1"), .precision = {.compute = dtype}});
    parallel::place(*stored, plan);
    parallel::Job job(stored.ptr(), plan,
                      [&](const std::vector<at::Tensor>& batch) mutable { return stored->loss(batch[0], batch[1]); },
                      {});
    const at::Tensor tokens = tokens_of({.batch = 4, .vocabulary = 101}, 0);
    const at::Tensor loss = job(tokens.slice(1, 0, 16).contiguous(), tokens.slice(1, 1, 17).contiguous());
    loss.backward();
    EXPECT_TRUE(at::equal(dtensor::full_tensor(loss.detach()).to(at::kDouble), expected.loss.to(at::kDouble)));
    for (const auto& item : stored->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(dtensor::full_tensor(item.value().grad()), expected.gradients.at(item.key())))
          << item.key();
    }
  });
}

TEST(Precision, OneRankHasTheBitsOfTheCastModel) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(dtype);
    expect_bits_of_cast_model<models::Llama>(llama(), dtype);
    expect_bits_of_cast_model<models::Gpt>(gpt(), dtype);
  }
}

TEST(Precision, ExactHasTheBitsOfOneRank) {
  Setting setting = {
      .steps = 4, .batch = 32, .vocabulary = 101, .lattice = sums::Lattice{.batch = 32, .sequence = 4, .feature = 4}};
  setting.precision = {.compute = at::kBFloat16};
  auto config = gpt();
  config.dropout = 0.1, config.tie_embeddings = true;
  const Curve one = train<models::Gpt>(setting, config, {});
  for (const Case& c : std::vector<Case>{{"dp=2"},
                                         {"tp=2"},
                                         {"fsdp=3"},
                                         {"fsdp=4", false, 2},
                                         {"dp=2,fsdp=2", false, 2, Sharding::kGradients},
                                         {"fsdp=2,tp=2", true},
                                         {"fsdp=2", false, 4, Sharding::kState}}) {
    SCOPED_TRACE(c.str());
    EXPECT_EQ(difference(one, train<models::Gpt>(setting, config, c)), "");
  }
}

// A model that was loaded in 16 bits is trained in float32.
TEST(Precision, WhatIsStoredMayBeWider) {
  const auto mesh = Mesh::parse("fsdp=2");
  run_on(mesh, [&](int64_t) {
    auto model = parallel::deferred([] { return models::Llama(llama(at::kBFloat16)); });
    const auto plan =
        parallel::generate_plan(*model, {.mesh = mesh, .precision = {.storage = at::kFloat, .compute = at::kBFloat16}});
    torch::optim::AdamW optimizer(model->parameters());
    parallel::place(*model, plan, &optimizer);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {});
    const at::Tensor tokens = tokens_of({.batch = 4, .vocabulary = 101}, 0);
    job(tokens.slice(1, 0, 16).contiguous(), tokens.slice(1, 1, 17).contiguous()).backward();
    optimizer.step();
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      EXPECT_EQ(dtensor::to_local(parameter).scalar_type(), at::kFloat);
      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    }
  });
}

// What a step sends on rank 0: cast before it is gathered, merged in what the plan says.
TEST(Precision, HalfOfTheBytesAreGathered) {
  const auto sent = [](Precision precision) {
    std::pair<int64_t, int64_t> bytes;
    const auto mesh = Mesh::parse("fsdp=2");
    run_on(mesh, [&](int64_t rank) {
      auto model = parallel::deferred([] { return models::Llama(llama()); });
      const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .precision = precision});
      parallel::place(*model, plan);
      parallel::Job job(
          model.ptr(), plan,
          [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); }, {});
      comm::RankContext::require().ledger.clear();
      const at::Tensor tokens = tokens_of({.batch = 4, .vocabulary = 101}, 0);
      job(tokens.slice(1, 0, 16).contiguous(), tokens.slice(1, 1, 17).contiguous()).backward();
      if (rank == 0) {
        const auto& ledger = comm::RankContext::require().ledger;
        bytes = {ledger.bytes_of("all_gather", "fsdp"), ledger.bytes_of("reduce_scatter", "fsdp")};
      }
    });
    return bytes;
  };
  const auto wide = sent({}), narrow = sent({.compute = at::kBFloat16}),
             narrowest = sent({.compute = at::kBFloat16, .reduce = at::kBFloat16});
  EXPECT_EQ(narrow.first * 2, wide.first);
  EXPECT_EQ(narrow.second, wide.second);
  EXPECT_EQ(narrowest.first, narrow.first);
  EXPECT_EQ(narrowest.second * 2, wide.second);
}

// What a run with a loss scaler does: scales, whether each step was taken, and the parameters in the end. A sample of
// step 2 has a gradient that is too large for float16 under any scale.
struct ScaledRun {
  std::vector<double> scales;
  std::vector<bool> steps;
  std::vector<at::Tensor> parameters;
};

ScaledRun run_scaled(const std::string& mesh_text, int64_t accumulate, const std::string& save_to = "",
                     const std::string& load_from = "") {
  ScaledRun run;
  const auto mesh = Mesh::parse(mesh_text);
  run_on(mesh, [&](int64_t rank) {
    dtensor::manual_seed(5);
    const sums::Lattice lattice{.batch = 8, .feature = 4};
    dtensor::set_numerics(dtensor::Numerics::kExact, lattice);
    auto model = parallel::deferred([] { return torch::nn::Linear(16, 8); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const auto plan =
        parallel::generate_plan(*model, {.mesh = mesh, .precision = {.compute = at::kHalf}, .lattice = lattice});
    parallel::place(*model, plan, &optimizer);
    parallel::LossScaler scaler({.scale = 1 << 20, .interval = 2});
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable {
                        return (model(batch[0]).to(at::kFloat) * batch[1]).mean();
                      },
                      {.accumulate = accumulate, .optimizer = &optimizer, .loss_scaler = &scaler});
    if (!load_from.empty()) {
      checkpoint::load(load_from, job);
    }
    for (int64_t step = job.step(); step < 8; ++step) {
      const at::Tensor x = waves({8, 16}).to(at::kFloat);
      at::Tensor weight = waves({8, 8}).to(at::kFloat);
      if (step == 2) {
        weight[7].fill_(1e9);  // the last rank's alone
      }
      if (rank == 0) {
        run.scales.push_back(scaler.scale());
      }
      job(x, weight).backward();
      const bool stepped = scaler.step(optimizer);
      EXPECT_EQ(stepped, !scaler.has_overflowed());
      optimizer.zero_grad();
      if (rank == 0) {
        run.steps.push_back(stepped);
      }
      if (!save_to.empty() && step == 4) {
        checkpoint::save(save_to, job);
      }
    }
    for (const at::Tensor& parameter : model->parameters()) {
      const at::Tensor whole = dtensor::full_tensor(parameter.detach());
      if (rank == 0) {
        run.parameters.push_back(whole);
      }
    }
  });
  return run;
}

void expect_same(const ScaledRun& one, const ScaledRun& other) {
  EXPECT_EQ(one.scales, other.scales);
  EXPECT_EQ(one.steps, other.steps);
  for (size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(one.parameters[i], other.parameters[i])) << i;
  }
}

TEST(LossScaler, AnOverflowOfOneRankIsEveryRanks) {
  const ScaledRun one = run_scaled("1", 1);
  EXPECT_FALSE(one.steps[2]);
  EXPECT_EQ(one.scales[3], one.scales[2] / 2);
  EXPECT_TRUE(std::count(one.steps.begin(), one.steps.end(), true) >= 4);
  EXPECT_TRUE(std::is_sorted(one.scales.rbegin(), one.scales.rend()) == false);  // it grows again
  for (const char* mesh : {"dp=2", "dp=4", "fsdp=2", "fsdp=3", "dp=2,fsdp=2"}) {
    for (const int64_t accumulate : {1, 2}) {
      SCOPED_TRACE(c10::str(mesh, " ", accumulate));
      expect_same(one, run_scaled(mesh, accumulate));
    }
  }
}

TEST(LossScaler, GoesOnWhereItWasSaved) {
  const auto folder = std::filesystem::temp_directory_path() / c10::str("tessera_scaler_", ::getpid());
  const ScaledRun whole = run_scaled("dp=2", 1, folder.string());
  const ScaledRun rest = run_scaled("fsdp=2", 1, "", folder.string());
  EXPECT_EQ(rest.scales, std::vector<double>(whole.scales.begin() + 5, whole.scales.end()));
  for (size_t i = 0; i < rest.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(whole.parameters[i], rest.parameters[i])) << i;
  }
  std::filesystem::remove_all(folder);
}

TEST(LossScaler, ScalesArePowersOfTwo) {
  EXPECT_THROW(parallel::LossScaler({.scale = 1000}), c10::Error);
  EXPECT_THROW(parallel::LossScaler({.growth = 1.5}), c10::Error);
  EXPECT_THROW(parallel::LossScaler({.backoff = 2}), c10::Error);
  EXPECT_THROW(parallel::LossScaler({.interval = 0}), c10::Error);
}

}  // namespace
}  // namespace tessera::ranks::precision_test
