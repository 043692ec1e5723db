// Fully sharded training of parameters of few rows: stacked experts, whose rows are those of two dims together.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::sharded_experts_test {
namespace {

constexpr int64_t kExperts = 4, kDim = 24, kHidden = 40;

struct ExpertsImpl : torch::nn::Module {
  explicit ExpertsImpl(at::ScalarType dtype = at::kFloat)
      : up(register_parameter("up", waves({kExperts, kDim, kHidden}).to(dtype).clone())),
        down(register_parameter("down", waves({kExperts, kHidden, kDim}, 0.31).to(dtype).clone())),
        last(register_module("last", torch::nn::Linear(kDim, 1))) {
    last->to(dtype);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = x;
    for (int64_t i = 0; i < kExperts; ++i) {
      sum = sum + at::tanh(x.mm(up[i])).mm(down[i]) / kHidden;
    }
    const at::Tensor together = at::einsum("bi,eio->beo", {x, up}).mean({1, 2});  // reads them all at once too
    return last(sum) + together.unsqueeze(1);
  }

  at::Tensor up, down;
  torch::nn::Linear last;
};
TORCH_MODULE(Experts);

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
};

// Four steps of a job of two micro-batches.
Trained train(const std::string& axes, plan::Sharding sharding, bool in_exact) {
  Trained run;
  const Mesh mesh = Mesh::parse(axes);
  const auto dtype = in_exact ? at::kFloat : at::kDouble;
  const at::Tensor x = waves({16, kDim}).to(dtype), y = waves({16, 1}, 0.7).to(dtype);
  run_on(mesh, [&](int64_t rank) {
    const auto lattice = in_exact ? std::optional(sums::Lattice{.batch = 16, .feature = 4}) : std::nullopt;
    dtensor::set_numerics(in_exact ? dtensor::Numerics::kExact : dtensor::Numerics::kFast,
                          lattice.value_or(sums::Lattice()));
    torch::manual_seed(3);
    Experts model(dtype);
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .sharding = sharding, .lattice = lattice});
    parallel::place(*model, plan);
    parallel::Job job(
        model.ptr(), plan,
        [model](const std::vector<at::Tensor>& batch) mutable { return torch::mse_loss(model(batch[0]), batch[1]); },
        {.accumulate = 2});
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = job(x, y);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
      optimizer.step();
      const double value = full_tensor(loss.detach()).item<double>();
      if (rank == 0) {
        run.losses.push_back(value);
      }
    }
    for (const at::Tensor& parameter : model->parameters()) {
      const at::Tensor value = full_tensor(parameter.detach());
      if (rank == 0) {
        run.parameters.push_back(value);
      }
    }
  });
  return run;
}

TEST(ShardedExperts, HaveTheNumbersOfOneDevice) {
  for (const bool in_exact : {false, true}) {
    const Trained one = train("fsdp=1", plan::Sharding::kParameters, in_exact);
    for (const char* axes : {"fsdp=3", "fsdp=8", "dp=2,fsdp=2"}) {
      for (const auto sharding : {plan::Sharding::kParameters, plan::Sharding::kGradients, plan::Sharding::kState}) {
        SCOPED_TRACE(c10::str(axes, " ", plan::name_of(sharding), in_exact ? " exact" : " fast"));
        const Trained many = train(axes, sharding, in_exact);
        for (size_t i = 0; i < one.losses.size(); ++i) {
          EXPECT_NEAR(many.losses[i], one.losses[i], in_exact ? 0 : 1e-11 * one.losses[i]);
        }
        for (size_t i = 0; i < one.parameters.size(); ++i) {
          EXPECT_LE(error_of(many.parameters[i], one.parameters[i]), 1e-9);
          EXPECT_TRUE(!in_exact || at::equal(many.parameters[i], one.parameters[i])) << i;
        }
      }
    }
  }
}

// Eight ranks of four experts each keep an eighth, within a row of each parameter.
TEST(ShardedExperts, AreDealtOutByTheRowsOfAllOfThem) {
  const Mesh mesh = Mesh::parse("fsdp=8");
  run_on(mesh, [&](int64_t rank) {
    auto model = parallel::deferred([] { return Experts(); });
    parallel::place(*model, parallel::generate_plan(*model, {.mesh = mesh}));
    EXPECT_TRUE(spec_of(model->up)->is_spanned()) << spec_of(model->up).str();
    int64_t own = 0, whole = 0;
    for (const at::Tensor& parameter : model->parameters()) {
      own += dtensor::meta_of(parameter)->local.numel();
      whole += parameter.numel();
    }
    EXPECT_LE(std::abs(own - whole / 8), 2 * kHidden + kDim) << rank;
  });
}

}  // namespace
}  // namespace tessera::ranks::sharded_experts_test
