// Recomputation inside a job and in a plain loop: the gradients are those of the same model without it.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/parallel/forward_pass.h"
#include "tessera/tessera.h"

namespace tessera::recompute_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Gradients = std::map<std::string, at::Tensor>;

constexpr int64_t kSamples = 12;

// Two blocks, each of which may run again in backward. The first one's input needs no gradient, and both read the tied
// weight.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool runs_again) : again(runs_again) {
    first = register_module("first", torch::nn::Linear(6, 6));
    second = register_module("second", torch::nn::Linear(6, 3));
    to(torch::kDouble);
  }

  at::Tensor run(const std::function<at::Tensor(const Tensors&)>& body, const Tensors& inputs) const {
    return again ? recompute(body, inputs) : body(inputs);
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor h =
        run([&](const Tensors& in) { return torch::dropout(torch::tanh(first(in[0])), 0.25, true); }, {x});
    const at::Tensor scores = run([&](const Tensors& in) { return second(torch::tanh(first(in[0])) + in[0]); }, {h});
    return torch::cross_entropy_loss(scores, y);
  }

  bool again;
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

at::Tensor inputs() { return at::arange(kSamples * 6, at::kDouble).reshape({kSamples, 6}).mul(0.7).sin(); }
at::Tensor targets() { return at::arange(kSamples).remainder(3); }

enum class Loop { kJob, kByHand };

struct Case {
  std::string mesh;
  Numerics numerics = Numerics::kFast;
  Loop loop = Loop::kJob;
  int64_t accumulate = 1;
};

// The gradients, and as "hooks" how often the tied weight's hook ran.
Gradients train(const Case& of, bool again) {
  return run_ranks(Mesh::parse(of.mesh).size(), [&] {
    manual_seed(3);
    set_numerics(of.numerics, Lattice{.batch = kSamples});
    Net net(again);
    const Plan plan = generate_plan(*net, {.mesh = Mesh::parse(of.mesh), .lattice = Lattice{.batch = kSamples}});
    place(*net, plan);
    int64_t hooks = 0;
    net->first->weight.register_hook([&](const at::Tensor&) { ++hooks; });
    if (of.loop == Loop::kJob) {
      Job job(net.ptr(), plan, [net](const Tensors& batch) mutable { return net(batch[0], batch[1]); },
              {.accumulate = of.accumulate});
      job(inputs(), targets()).backward();
    } else {
      parallel::ForwardPasses passes(plan);
      const Tensors batch = passes.begin({{"x", inputs()}, {"y", targets()}});
      net(batch[0], batch[1]).backward();
      passes.end();
    }
    Gradients all = {{"hooks", at::tensor(hooks)}};
    for (const auto& item : net->named_parameters()) {
      all[item.key()] = item.value().grad().defined() ? full_tensor(item.value().grad()) : at::Tensor();
    }
    return all;
  });
}

void expect_same(const Case& of) {
  const Gradients plain = train(of, false), again = train(of, true);
  for (const auto& [name, gradient] : plain) {
    ASSERT_TRUE(again.at(name).defined()) << name;
    const bool has_bits = of.numerics == Numerics::kExact || name == "hooks";
    EXPECT_TRUE(has_bits ? at::equal(again.at(name), gradient) : at::allclose(again.at(name), gradient, 1e-13, 1e-15))
        << name;
  }
}

TEST(Recompute, GivesAJobItsGradients) {
  for (const Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
    for (const char* mesh : {"1", "dp=2", "tp=2", "dp=2,tp=2"}) {
      for (const int64_t accumulate : {1, 3}) {
        SCOPED_TRACE(c10::str(mesh, " accumulate ", accumulate, " numerics ", static_cast<int>(numerics)));
        expect_same({mesh, numerics, Loop::kJob, accumulate});
      }
    }
  }
}

TEST(Recompute, GivesALoopByHandItsGradients) {
  for (const Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
    for (const char* mesh : {"1", "dp=2", "tp=2", "dp=2,tp=2"}) {
      SCOPED_TRACE(c10::str(mesh, " numerics ", static_cast<int>(numerics)));
      expect_same({mesh, numerics, Loop::kByHand});
    }
  }
}

// What the body reads besides its inputs and parameters would get no gradient, and is asked for.
TEST(Recompute, AsksForWhatItsBodyReads) {
  try {
    run_ranks(1, [] {
      const at::Tensor w = distribute(at::ones({2, 2}), Mesh::parse("1"), "{}").requires_grad_();
      const at::Tensor twice = w * 2;
      recompute([&](const Tensors& in) { return in[0] * twice; }, {w});
    });
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(base::message_of(error).find("give it to the body as an input"), std::string::npos)
        << base::message_of(error);
  }
}

}  // namespace
}  // namespace tessera::recompute_test
