// What optimizers keep and are set to, by name: libtorch's, and one of a program.
#include "tessera/parallel/optimizer_fields.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/lion.h"
#include "tessera/parallel/place.h"
#include "tessera/plan/plan.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::optimizer_fields_test {
namespace {

using parallel::FieldVisitor;
using parallel::find_kind;

// Takes down names and sets every number to another one.
class Names : public FieldVisitor {
 public:
  void tensor(const char* name, at::Tensor& value) override {
    take(name), value = value.defined() ? value : at::ones({2});
  }
  void integer(const char* name, int64_t& value) override { take(name), value = 7; }
  void number(const char* name, double& value) override { take(name), value = 0.25 + static_cast<double>(count_); }
  void flag(const char* name, bool& value) override { take(name), value = true; }
  std::string text;

 private:
  void take(const char* name) { text += (count_++ > 0 ? " " : "") + std::string(name); }
  int64_t count_ = 0;
};

std::string options_of(torch::optim::Optimizer& optimizer) {
  Names names;
  find_kind(optimizer)->visit_options(optimizer.param_groups()[0].options(), names);
  return names.text;
}

std::string state_of(const torch::optim::Optimizer& optimizer) {
  Names names;
  const auto state = find_kind(optimizer)->make_state();
  find_kind(optimizer)->visit_state(*state, names);
  return names.text;
}

TEST(OptimizerFields, OfLibtorch) {
  const std::vector<at::Tensor> parameters = {at::ones({2})};
  torch::optim::AdamW adamw(parameters);
  EXPECT_EQ(options_of(adamw), "lr beta1 beta2 eps weight_decay amsgrad");
  EXPECT_EQ(state_of(adamw), "step exp_avg exp_avg_sq max_exp_avg_sq");
  const auto& set = static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[0].options());
  EXPECT_EQ(set.lr(), 1.25);
  EXPECT_EQ(set.betas(), std::make_tuple(2.25, 3.25));
  EXPECT_TRUE(set.amsgrad());
  torch::optim::Adam adam(parameters);
  EXPECT_EQ(options_of(adam), "lr beta1 beta2 eps weight_decay amsgrad");
  EXPECT_EQ(find_kind(adam)->name, "Adam");
  torch::optim::SGD sgd(parameters, 0.1);
  EXPECT_EQ(options_of(sgd), "lr momentum dampening weight_decay nesterov");
  EXPECT_EQ(state_of(sgd), "momentum_buffer");
  torch::optim::RMSprop rmsprop(parameters);
  EXPECT_EQ(options_of(rmsprop), "lr alpha eps weight_decay momentum centered");
  EXPECT_EQ(state_of(rmsprop), "step square_avg momentum_buffer grad_avg");
  torch::optim::Adagrad adagrad(parameters);
  EXPECT_EQ(options_of(adagrad), "lr lr_decay weight_decay eps initial_accumulator_value");
  EXPECT_EQ(state_of(adagrad), "step sum");
}

TEST(OptimizerFields, OfOurOwn) {
  const std::vector<at::Tensor> parameters = {at::ones({2})};
  optim::Lion lion(parameters);
  EXPECT_EQ(options_of(lion), "lr beta1 beta2 weight_decay maximize");
  EXPECT_EQ(static_cast<optim::LionOptions&>(lion.param_groups()[0].options()).betas(), std::make_tuple(2.25, 3.25));
  EXPECT_EQ(state_of(lion), "exp_avg");
  optim::AdamW8bit adamw(parameters);
  EXPECT_EQ(options_of(adamw), "lr beta1 beta2 eps weight_decay maximize");
  EXPECT_EQ(state_of(adamw), "step exp_avg_codes exp_avg_scales exp_avg_sq_codes exp_avg_sq_scales");
}

struct VelocityOptions : torch::optim::OptimizerCloneableOptions<VelocityOptions> {
  TORCH_ARG(double, lr) = 0.1;
};

struct VelocityState : torch::optim::OptimizerCloneableParamState<VelocityState> {
  TORCH_ARG(at::Tensor, velocity);
};

class Velocity : public torch::optim::Optimizer {
 public:
  explicit Velocity(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<VelocityOptions>()) {
    for (const auto& parameter : param_groups()[0].params()) {
      auto state = std::make_unique<VelocityState>();
      state->velocity(at::ones_like(parameter));
      state_[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  torch::Tensor step(LossClosure) override { return {}; }
};

TEST(OptimizerFields, OfAProgramOnceItIsRegistered) {
  const auto place_one = [] {
    torch::nn::Linear model(4, 6);
    Velocity optimizer(model->parameters());
    plan::Plan plan;
    plan.mesh = Mesh::parse("tp=2");
    plan.parameters = {{.pattern = "weight", .storage = {layout::Shard(0)}, .input = {}, .output = {}}};
    parallel::place(*model, plan, &optimizer);
    const auto& state = static_cast<VelocityState&>(*optimizer.state().at(model->weight.unsafeGetTensorImpl()));
    EXPECT_EQ(spec_of(state.velocity()).layout_str(), "{tp: S(0)}");
  };
  EXPECT_SAYS(failure_on(2, [&](int64_t) { place_one(); }), "register_optimizer");
  parallel::register_optimizer(parallel::optimizer_kind<Velocity, VelocityOptions, VelocityState>(
      "Velocity", [](VelocityOptions& options, FieldVisitor& visit) { visit.number("lr", options.lr()); },
      [](VelocityState& state, FieldVisitor& visit) { visit.tensor("velocity", state.velocity()); }));
  EXPECT_EQ(failure_on(2, [&](int64_t) { place_one(); }), "");
  EXPECT_EQ(parallel::optimizer_names(), "SGD, Adam, AdamW, RMSprop, Adagrad, Lion, AdamW8bit, Velocity");
}

}  // namespace
}  // namespace tessera::ranks::optimizer_fields_test
