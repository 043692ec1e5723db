// Lion on parameters of every layout, against its formula in plain libtorch.
#include <torch/torch.h>

#include "tessera/optim/lion.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::lion_test {
namespace {

using Tensors = std::vector<at::Tensor>;

const optim::LionOptions& options() {
  static const auto all = optim::LionOptions(0.03).betas({0.8, 0.95}).weight_decay(0.1);
  return all;
}

Tensors start() { return {waves({7, 5}), waves({5}, 0.77), waves({3, 4, 2}, 0.53)}; }

Tensors gradients_of(int64_t step) {
  Tensors list;
  for (const at::Tensor& value : start()) {
    list.push_back(waves(value.sizes(), 0.31 + 0.17 * static_cast<double>(step)));
  }
  return list;
}

// Three steps by the paper's formula.
Tensors by_formula(c10::ScalarType dtype) {
  Tensors parameters = start(), averages;
  for (at::Tensor& parameter : parameters) {
    parameter = parameter.to(dtype), averages.push_back(at::zeros_like(parameter));
  }
  for (int64_t step = 0; step < 3; ++step) {
    const Tensors gradients = gradients_of(step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor g = gradients[i].to(dtype);
      parameters[i].mul_(1 - 0.03 * 0.1).sub_(averages[i].mul(0.8).add(g, 1 - 0.8).sign(), 0.03);
      averages[i].mul_(0.95).add_(g, 1 - 0.95);
    }
  }
  return parameters;
}

// Three steps of the optimizer, of parameters as `make` places them.
Tensors train(c10::ScalarType dtype, const std::function<at::Tensor(const at::Tensor&)>& make) {
  Tensors parameters;
  for (const at::Tensor& value : start()) {
    parameters.push_back(make(value.to(dtype)).requires_grad_());
  }
  optim::Lion lion(parameters, options());
  for (int64_t step = 0; step < 3; ++step) {
    const Tensors gradients = gradients_of(step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = make(gradients[i].to(dtype));
    }
    lion.step();
  }
  for (at::Tensor& parameter : parameters) {
    parameter = parameter.detach();
  }
  return parameters;
}

Placements drawn(const Mesh& mesh, int64_t ndim, uint64_t number) {
  std::vector<Placement> choices = {layout::Replicate()};
  for (int64_t dim = 0; dim < ndim; ++dim) {
    choices.push_back(layout::Shard(dim));
  }
  const auto all = every_layout(mesh, ndim, choices);
  return all[number % all.size()];
}

TEST(Lion, IsTheFormulaOnPlainTensors) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const Tensors found = train(dtype, [](const at::Tensor& value) { return value.clone(); });
    const Tensors expected = by_formula(dtype);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(error_of(found[i], expected[i]), dtype == at::kFloat ? 1e-6 : 1e-14) << i;
    }
  }
}

TEST(Lion, HasOneSetOfBitsOnEveryLayoutInBothNumerics) {
  const Tensors plain = train(at::kFloat, [](const at::Tensor& value) { return value.clone(); });
  for (const char* axes : {"a=1", "a=2", "a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(axes);
    for (const auto numerics : {dtensor::Numerics::kFast, dtensor::Numerics::kExact}) {
      run_on(mesh, [&](int64_t) {
        dtensor::set_numerics(numerics);
        for (uint64_t number = 0; number < 16; ++number) {
          const Tensors found = train(at::kFloat, [&](const at::Tensor& value) {
            return spread(value, mesh, drawn(mesh, value.dim(), number));
          });
          for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(at::equal(full_tensor(found[i]), plain[i])) << axes << " layout " << number << " of " << i;
          }
        }
      });
    }
  }
}

TEST(Lion, KeepsItsMomentWhereTheParameterIsAndStepsAGroupInOneCall) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    Tensors parameters = {distribute(waves({4, 3}), mesh, "{a: S(0)}").requires_grad_(),
                          distribute(waves({6}), mesh, "{}").requires_grad_()};
    optim::Lion lion(parameters);
    parameters[0].mutable_grad() = distribute(waves({4, 3}), mesh, "{a: S(1)}");  // moved
    lion.step();
    const auto& state = static_cast<optim::LionParamState&>(*lion.state().at(parameters[0].unsafeGetTensorImpl()));
    EXPECT_EQ(spec_of(state.exp_avg()).layout_str(), "{a: S(0)}");
    EXPECT_TRUE(lion.state().find(parameters[1].unsafeGetTensorImpl()) == lion.state().end()) << "it has no gradient";
    const uint32_t before = parameters[0]._version();
    lion.step();
    EXPECT_GT(parameters[0]._version(), before);
  });
}

TEST(Lion, SaysWhatItDoesNotTake) {
  const Tensors parameters = {at::ones({2}).requires_grad_()};
  EXPECT_THROW(optim::Lion(parameters, optim::LionOptions(-1)), c10::Error);
  EXPECT_THROW(optim::Lion(parameters, optim::LionOptions().betas({1.0, 0.9})), c10::Error);
  const Tensors halves = {at::ones({2}, at::kHalf).requires_grad_()};
  halves[0].mutable_grad() = at::ones({2}, at::kHalf);
  optim::Lion lion(halves);
  try {
    lion.step();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_SAYS(std::string(error.what_without_backtrace()), "accepted: float32 and float64");
  }
}

}  // namespace
}  // namespace tessera::ranks::lion_test
