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

// Two blocks that read each of four weights twice: the order in which gradients are added up is seen from three on.
struct ReadsManyTimesImpl : torch::nn::Module {
  explicit ReadsManyTimesImpl(bool runs_again) : again(runs_again) {
    first = register_module("first", torch::nn::Linear(6, 6));
    for (const char* name : {"second", "third", "fourth"}) {
      others.push_back(register_module(name, torch::nn::Linear(6, 6)));
    }
    to(torch::kDouble);
  }

  at::Tensor block(const at::Tensor& x) {
    const auto body = [this](const Tensors& in) {
      at::Tensor sum = first(in[0]) * first(in[0].cos());
      for (torch::nn::Linear& other : others) {
        sum = sum + torch::tanh(other(in[0])) + other(in[0].sin());
      }
      return sum;
    };
    return again ? recompute(body, {x}) : body({x});
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return torch::cross_entropy_loss(block(block(x)), y); }

  bool again;
  torch::nn::Linear first{nullptr};
  std::vector<torch::nn::Linear> others;
};
TORCH_MODULE(ReadsManyTimes);

at::Tensor inputs() { return at::arange(kSamples * 6, at::kDouble).reshape({kSamples, 6}).mul(0.7).sin(); }
at::Tensor targets() { return at::arange(kSamples).remainder(3); }

enum class Loop { kJob, kByHand };

struct Case {
  std::string mesh;
  Numerics numerics = Numerics::kFast;
  Loop loop = Loop::kJob;
  int64_t accumulate = 1;
};

// The gradients, and as "hooks" how often the first weight's hook ran.
template <typename Model>
Gradients train(const Case& of, bool again) {
  return run_ranks(Mesh::parse(of.mesh).size(), [&] {
    manual_seed(3);
    set_numerics(of.numerics, Lattice{.batch = kSamples});
    Model net(again);
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

template <typename Model = Net>
void expect_same(const Case& of) {
  const Gradients plain = train<Model>(of, false), again = train<Model>(of, true);
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

TEST(Recompute, AddsReadingsInTheOrderOfOneGraphInExact) {
  for (const char* mesh : {"1", "dp=2"}) {
    for (const int64_t accumulate : {1, 3}) {
      SCOPED_TRACE(c10::str(mesh, " accumulate ", accumulate));
      expect_same<ReadsManyTimes>({mesh, Numerics::kExact, Loop::kJob, accumulate});
    }
    expect_same<ReadsManyTimes>({mesh, Numerics::kExact, Loop::kByHand});
  }
}

struct Gradient {
  at::Tensor x, w;
};

// In float32 with `fast` numerics, where every order of additions has bits of its own: what two blocks make of tensors
// that both read more than once, and of what one hands to the other.
Gradient gradient_of_readings(bool again) {
  const auto run = [&](const std::function<Tensors(const Tensors&)>& body, const Tensors& in) {
    return again ? recompute(body, in) : body(in);
  };
  Gradient result;
  run_ranks(1, [&] {
    manual_seed(5);
    const auto mesh = Mesh::parse("1");
    const at::Tensor w = distribute(at::randn({8, 8}), mesh, "{}").requires_grad_();
    const at::Tensor x = distribute(at::randn({4, 8}), mesh, "{}").requires_grad_();
    const at::Tensor shared = x.sin();
    const Tensors one = run(
        [&](const Tensors& in) -> Tensors {
          const at::Tensor scores = in[0].mm(w) * in[0].exp() + in[0].mm(w.t()).tanh();
          return {scores, in[0].cos(), in[0], in[0].detach() > 0};
        },
        {shared});
    EXPECT_TRUE(one[2].is_same(shared));
    EXPECT_FALSE(one[3].requires_grad());
    const Tensors two = run(
        [&](const Tensors& in) -> Tensors {
          return {(in[0] * in[1]).mm(w) + in[2].mm(w) * in[1] + at::where(in[3], in[2], in[1])};
        },
        one);
    (two[0].sum() + one[1].square().sum() + shared.square().sum()).backward();
    result = {full_tensor(x.grad()), full_tensor(w.grad())};
  });
  return result;
}

TEST(Recompute, AddsGradientsInTheOrderOfOneGraph) {
  const Gradient plain = gradient_of_readings(false), again = gradient_of_readings(true);
  EXPECT_TRUE(at::equal(plain.x, again.x));
  EXPECT_TRUE(at::equal(plain.w, again.w));
}

// One inside of another, and one result that nobody reads.
TEST(Recompute, Nests) {
  const auto gradient = [](bool again) {
    at::Tensor result;
    run_ranks(1, [&] {
      manual_seed(5);
      const at::Tensor x = distribute(at::randn({4, 8}), Mesh::parse("1"), "{}").requires_grad_();
      const auto inner = [](const Tensors& in) -> Tensors {
        return {at::dropout(in[0], 0.5, true) * in[0], in[0].exp()};
      };
      const auto outer = [&](const Tensors& in) -> Tensors {
        const at::Tensor h = in[0].tanh() + in[0];
        return {(again ? recompute(inner, {h}) : inner({h}))[0] * in[0], h};
      };
      (again ? recompute(outer, {x}) : outer({x}))[0].sum().backward();
      result = full_tensor(x.grad());
    });
    return result;
  };
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
}

void expect_error(const std::function<void()>& body, const std::string& text) {
  try {
    run_ranks(1, [&] { body(); });
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(base::message_of(error).find(text), std::string::npos) << base::message_of(error);
  }
}

TEST(Recompute, RefusesABodyThatDoesAnotherThingTheSecondTime) {
  const auto train = [](const std::function<Tensors(const Tensors&, int)>& body) {
    const at::Tensor x = distribute(at::ones({2, 2}), Mesh::parse("1"), "{}").requires_grad_();
    int runs = 0;
    recompute([&](const Tensors& in) { return body(in, runs++); }, {x})[0].sum().backward();
  };
  expect_error(
      [&] { train([](const Tensors& in, int run) -> Tensors { return {run == 0 ? in[0] * 2 : in[0] * in[0]}; }); },
      "reads other inputs or parameters");
  expect_error(
      [&] { train([](const Tensors& in, int run) -> Tensors { return {run == 0 ? in[0] * 2 : in[0].detach()}; }); },
      "wants none the second time");
}

// What the body reads besides its inputs and parameters would get no gradient, and is asked for.
TEST(Recompute, AsksForWhatItsBodyReads) {
  expect_error(
      [] {
        const at::Tensor w = distribute(at::ones({2, 2}), Mesh::parse("1"), "{}").requires_grad_();
        const at::Tensor twice = w * 2;
        recompute([&](const Tensors& in) { return in[0] * twice; }, {w});
      },
      "give it to the body as an input");
}

}  // namespace
}  // namespace tessera::recompute_test
