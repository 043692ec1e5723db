// libtorch's own optimizers on DTensor parameters of every layout, against one device.
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::optim_test {
namespace {

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;

template <typename Optimizer, typename Options>
MakeOptimizer with(Options options) {
  return [options](const Parameters& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

const std::vector<std::pair<const char*, MakeOptimizer>>& optimizers() {
  using namespace torch::optim;
  static const std::vector<std::pair<const char*, MakeOptimizer>> all = {
      {"SGD", with<SGD>(SGDOptions(0.1))},
      {"SGD momentum", with<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
      {"SGD Nesterov", with<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", with<Adam>(AdamOptions(0.05))},
      {"Adam amsgrad", with<Adam>(AdamOptions(0.05).amsgrad(true).weight_decay(0.01))},
      {"AdamW", with<AdamW>(AdamWOptions(0.05))},
      {"AdamW amsgrad", with<AdamW>(AdamWOptions(0.05).amsgrad(true))},
      {"RMSprop", with<RMSprop>(RMSpropOptions(0.05))},
      {"RMSprop centered", with<RMSprop>(RMSpropOptions(0.05).centered(true).momentum(0.9))},
      {"Adagrad", with<Adagrad>(AdagradOptions(0.05).lr_decay(0.01))},
  };
  return all;
}

const at::Tensor& input() {
  static const at::Tensor x = waves({6, 5}, 0.29);
  return x;
}

Parameters start() { return {waves({5, 4}), waves({4}, 0.77), waves({4, 3}, 0.53)}; }

// Three steps of a small network; the norms that clipping saw.
std::vector<double> train(Parameters& parameters, const at::Tensor& x, const MakeOptimizer& make) {
  const auto optimizer = make(parameters);
  std::vector<double> norms;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor hidden = at::tanh(at::mm(x, parameters[0]) + parameters[1]);
    at::mm(hidden, parameters[2]).square().mean().backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, i == 1 ? 1e6 : 0.5));
    optimizer->step();
    optimizer->zero_grad(i == 1);
  }
  return norms;
}

TEST(Optimizers, AreThoseOfOneDevice) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const char* const layouts[][3] = {{"{}", "{}", "{}"},
                                    {"{a: S(0)}", "{a: S(0)}", "{b: S(0)}"},
                                    {"{b: S(1)}", "{b: S(0)}", "{a: S(1), b: S(0)}"},
                                    {"{a: S(0), b: S(0)}", "{a: S(0), b: S(0)}", "{a: S(1), b: S(1)}"}};
  for (const auto& [name, make] : optimizers()) {
    Parameters plain = start();
    for (at::Tensor& parameter : plain) {
      parameter.requires_grad_();
    }
    const auto norms = train(plain, input(), make);
    run_on(mesh, [&, &name = name, &make = make](int64_t) {
      for (const auto& layout : layouts) {
        Parameters parameters;
        for (size_t i = 0; i < plain.size(); ++i) {
          parameters.push_back(distribute(start()[i], mesh, layout[i]).requires_grad_());
        }
        const auto found = train(parameters, distribute(input(), mesh, "{a: S(0)}"), make);
        for (size_t i = 0; i < norms.size(); ++i) {
          EXPECT_NEAR(found[i], norms[i], 1e-12 * norms[i]) << name << " " << layout[0];
        }
        for (size_t i = 0; i < plain.size(); ++i) {
          EXPECT_LE(error_of(full_tensor(parameters[i].detach()), plain[i].detach()), 1e-12)
              << name << " " << layout[0] << " parameter " << i;
          EXPECT_EQ(spec_of(parameters[i]).layout_str(),
                    Spec::contiguous(mesh, layout::parse_placements(mesh, layout[i]), plain[i].sizes(), at::kDouble)
                        .layout_str())
              << "a parameter stays where it is";
        }
      }
    });
  }
}

TEST(Optimizers, KeepStateWhereTheParameterIs) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    Parameters parameters = {distribute(waves({4, 3}), mesh, "{a: S(0)}").requires_grad_()};
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.1));
    at::mm(distribute(waves({3, 4}), mesh, "{a: S(0)}"), parameters[0]).square().sum().backward();
    optimizer.step();
    const auto& state =
        static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(parameters[0].unsafeGetTensorImpl()));
    EXPECT_EQ(spec_of(state.exp_avg()).layout_str(), "{a: S(0)}");
    EXPECT_EQ(spec_of(state.exp_avg_sq()).layout_str(), "{a: S(0)}");
    EXPECT_EQ(to_local(state.exp_avg()).sizes(), c10::IntArrayRef({2, 3}));
  });
}

TEST(Optimizers, ClipByValueAndNormsOfEveryOrder) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const at::Tensor value = waves({5, 4}), weights = waves({5, 4}, 0.9);
  for (double order : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const at::Tensor plain = value.clone().requires_grad_();
    (plain * weights).sum().backward();
    const double norm = torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{plain}, 0.1, order);
    run_on(mesh, [&](int64_t) {
      for (const Placements& placements : plain_layouts(mesh, 2)) {
        const at::Tensor x = spread(value, mesh, placements).requires_grad_();
        (x * spread(weights, mesh, placements)).sum().backward();
        EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{x}, 0.1, order), norm, 1e-13)
            << order << layout::str(mesh, placements);
        EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-13) << order << layout::str(mesh, placements);
        torch::nn::utils::clip_grad_value_(std::vector<at::Tensor>{x}, 0.01);
        EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad().clamp(-0.01, 0.01)), 1e-13);
      }
    });
  }
}

TEST(OptimizedModules, VectorsOfParametersGoThereAndBack) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    Parameters parameters = {distribute(waves({4, 3}), mesh, "{a: S(0)}"), distribute(waves({3}, 0.2), mesh, "{}")};
    const at::Tensor flat = torch::nn::utils::parameters_to_vector(parameters);
    EXPECT_EQ(error_of(full_tensor(flat), at::cat({waves({12}), waves({3}, 0.2)})), 0);
    Parameters others = {at::zeros_like(parameters[0]), at::zeros_like(parameters[1])};
    torch::nn::utils::vector_to_parameters(flat, others);
    EXPECT_EQ(error_of(full_tensor(others[0]), waves({4, 3})), 0);
  });
}

}  // namespace
}  // namespace tessera::ranks::optim_test
