// Results that recomputed bodies keep: the bits of a model that keeps everything, each operator once, and so much
// memory.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/dtensor/state/observer.h"
#include "tests/ranks/block_models.h"

namespace tessera::ranks::kept_results_test {
namespace {

using dtensor::recompute;
using plan::Sharding;
using Names = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

const Names kAttentionAndProducts = {"scaled_dot_product_attention", "linear"};

models::LlamaConfig llama(int64_t layers = 3) {
  models::LlamaConfig config;
  config.vocab_size = 67, config.dim = 32, config.layers = layers, config.heads = 4, config.kv_heads = 2;
  config.hidden = 48, config.max_seq = 16, config.fused_attention = true;
  return config;
}

Setting setting_of(std::optional<sums::Lattice> lattice) {
  return {.steps = 2, .batch = 16, .vocabulary = 67, .lattice = lattice};
}

Setting with(Setting setting, Names modules, Names keep) {
  setting.recompute = std::move(modules), setting.recompute_keep = std::move(keep);
  return setting;
}

TEST(KeptResults, HaveTheBitsOfAModelThatKeepsEverything) {
  const Setting all = setting_of(sums::Lattice{.batch = 16, .sequence = 2, .feature = 4});
  const Curve gpts = train<models::Gpt>(all, tied_gpt_with_dropout(), {}),
              llamas = train<models::Llama>(all, llama(), {});
  for (const Case& c : std::vector<Case>{
           {"1"}, {"tp=2", true}, {"fsdp=2", false, 2, Sharding::kGradients}, {"fsdp=2,tp=2", false, 2}}) {
    SCOPED_TRACE(c.str());
    EXPECT_EQ(difference(gpts, train<models::Gpt>(with(all, {"transformer.h.*"}, {"linear", "softmax", "mul"}),
                                                  tied_gpt_with_dropout(), c)),
              "");
    EXPECT_EQ(
        difference(llamas, train<models::Llama>(with(all, {"model.layers.*"}, kAttentionAndProducts), llama(), c)), "");
  }
}

TEST(KeptResults, HaveTheSameBitsInFast) {
  const Setting all = setting_of(std::nullopt);
  for (const Case& c : std::vector<Case>{{"dp=2", false, 2}, {"tp=2", true}, {"fsdp=2"}}) {
    SCOPED_TRACE(c.str());
    EXPECT_EQ(difference(train<models::Gpt>(all, tied_gpt_with_dropout(), c),
                         train<models::Gpt>(with(all, {"transformer.h.*"}, {"linear", "layer_norm", "gelu"}),
                                            tied_gpt_with_dropout(), c)),
              "");
    EXPECT_EQ(difference(train<models::Llama>(all, llama(), c),
                         train<models::Llama>(with(all, {"model.layers.*"}, kAttentionAndProducts), llama(), c)),
              "");
  }
}

// How often operators ran.
class Counts final : public dtensor::OpObserver {
 public:
  Counts() : state_(dtensor::RankState::require()), before_(state_.watch.set_observer(this)) {}
  ~Counts() override { state_.watch.set_observer(before_); }
  Counts(const Counts&) = delete;
  Counts& operator=(const Counts&) = delete;

  void on_results(dtensor::RankState&, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue>) override {
    ++counts_[info.name];
  }
  std::map<std::string, int64_t> take() { return std::exchange(counts_, {}); }

 private:
  dtensor::RankState& state_;
  dtensor::OpObserver* before_;
  std::map<std::string, int64_t> counts_;
};

constexpr int64_t kBatch = 16, kLength = 16;

// Operators of a step of a Llama, on rank 0.
std::map<std::string, int64_t> operators_of_step(const Mesh& mesh, const Names& modules, const Names& keep) {
  std::map<std::string, int64_t> found;
  run_on(mesh, [&](int64_t rank) {
    LlamaLoop loop(llama(), {.mesh = mesh, .recompute = modules, .recompute_keep = keep});
    loop.forward(kBatch, kLength).backward();
    Counts counts;
    loop.forward(kBatch, kLength).backward();
    if (rank == 0) {
      found = counts.take();
    }
  });
  return found;
}

TEST(KeptResults, AreComputedOnce) {
  const auto mesh = Mesh::parse("fsdp=2");
  auto plain = operators_of_step(mesh, {}, {}), again = operators_of_step(mesh, {"model.layers.*"}, {}),
       kept = operators_of_step(mesh, {"model.layers.*"}, kAttentionAndProducts);
  for (const char* op : {"tessera::contract", "tessera::fused_attention"}) {
    EXPECT_GT(plain[op], 0) << op;
    EXPECT_EQ(kept[op], plain[op]) << op;
    EXPECT_GT(again[op], plain[op]) << op;  // the control: without the list they run twice
  }
  EXPECT_EQ(kept["aten::silu"], 2 * plain["aten::silu"]);
}

// By each block: its input, and the results of what is kept.
TEST(KeptResults, AddTheirBytesAndNoMore) {
  support::count_allocations();
  for (const char* text : {"1", "fsdp=2"}) {
    SCOPED_TRACE(text);
    const auto mesh = Mesh::parse(text);
    const auto config = llama();
    const auto positions = static_cast<double>(kBatch / mesh.size() * kLength);
    const double row = positions * static_cast<double>(config.dim) * 4, heads = positions * config.heads * 4;
    const double keys = positions * static_cast<double>(config.kv_heads * config.head_dim()) * 4;
    const double hidden = positions * static_cast<double>(config.hidden) * 4;
    const double attention = row + heads;                             // the result, and the sums of its rows
    const double products = row + 2 * keys + row + 2 * hidden + row;  // q, k and v, o, gate and up, down
    for (const auto& [keep, bytes] :
         std::vector<std::pair<Names, double>>{{{"scaled_dot_product_attention"}, attention},
                                               {{"linear"}, products},
                                               {kAttentionAndProducts, attention + products}}) {
      SCOPED_TRACE(keep.front());
      const PassBytes found = added_by_block(
          llama, {.mesh = mesh, .recompute = {"model.layers.*"}, .recompute_keep = keep}, kBatch, kLength);
      EXPECT_NEAR(found.held, row + bytes, 0.02 * (row + bytes));
      EXPECT_NEAR(found.peak, row + bytes, 0.02 * (row + bytes));
    }
  }
}

at::Tensor leaf(at::IntArrayRef sizes) { return distribute(at::randn(sizes), Mesh::parse("1"), "{}").requires_grad_(); }

// The gradients of `body`, as often as its graph is kept.
Tensors gradients_of(const std::function<at::Tensor(const Tensors&)>& body, bool again, const Names& keep,
                     int times = 1) {
  Tensors found;
  comm::run_ranks(1, [&] {
    dtensor::manual_seed(3);
    at::Tensor x = leaf({4, 8}), w = leaf({8, 8});
    const at::Tensor y = again ? recompute(body, {x, w}, {.keep = keep}) : body({x, w});
    for (int i = 0; i < times; ++i) {
      y.sum().backward({}, /*retain_graph=*/i + 1 < times);
    }
    found = {full_tensor(x.grad()), full_tensor(w.grad())};
  });
  return found;
}

// ... are those of the body itself.
void expect_same(const std::function<at::Tensor(const Tensors&)>& body, const Names& keep, int times = 1) {
  const Tensors plain = gradients_of(body, false, {}, times), kept = gradients_of(body, true, keep, times);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], kept[i])) << i;
  }
}

TEST(KeptResults, TakeWhatWasDrawn) {
  const auto body = [](const Tensors& in) {
    const at::Tensor noise = at::bernoulli(in[0].detach().sigmoid());
    const auto [dropped, mask] = at::native_dropout(in[0].mm(in[1]), 0.5, true);
    return dropped * noise + at::rand_like(in[0]) * in[0];
  };
  for (const Names& keep : {Names{"bernoulli"}, Names{"native_dropout"}, Names{"rand_like"},
                            Names{"bernoulli", "native_dropout", "rand_like", "mm"}}) {
    SCOPED_TRACE(keep.front());
    expect_same(body, keep);
  }
}

TEST(KeptResults, ServeAGraphThatIsKept) {
  expect_same([](const Tensors& in) { return in[0].mm(in[1]).tanh().mm(in[1]).exp(); }, {"mm", "tanh"}, 3);
}

// Bodies within bodies: what an inner one keeps it has from the outer one's second run, which took it.
TEST(KeptResults, Nest) {
  int inner_runs = 0;
  const auto inner = [&](const Tensors& in) {
    ++inner_runs;
    return in[0].mm(in[1]).tanh();
  };
  for (const Names& keep : {Names{}, Names{"mm"}, Names{"tanh"}}) {
    for (const Names& keep_inside : {Names{}, Names{"mm"}}) {
      const auto outer = [&](bool again) {
        return [&, again](const Tensors& in) {
          const at::Tensor h = in[0].sin();
          return (again ? recompute(inner, {h, in[1]}, {.keep = keep_inside}) : inner({h, in[1]})).mm(in[1]);
        };
      };
      const Tensors plain = gradients_of(outer(false), false, {});
      inner_runs = 0;
      const Tensors kept = gradients_of(outer(true), true, keep);
      EXPECT_EQ(inner_runs, 3);
      EXPECT_TRUE(at::equal(plain[0], kept[0]) && at::equal(plain[1], kept[1]));
    }
  }
}

std::string failure_of(const std::function<at::Tensor(const Tensors&)>& body, const Names& keep,
                       const std::function<void(at::Tensor&)>& after = {}) {
  return failure_on(1, [&](int64_t) {
    at::Tensor y = recompute(body, {leaf({4, 8}), leaf({8, 8})}, {.keep = keep});
    if (after) {
      after(y);
    }
    y.sum().backward();
  });
}

// What is kept is what the operator gave, not what the body made of it.
TEST(KeptResults, ThatABodyWritesToAreRight) {
  expect_same([](const Tensors& in) { return in[0].mm(in[1]).mul_(2).exp() + in[0]; }, {"mm"});
  expect_same([](const Tensors& in) { return in[0].mm(in[1]).mul_(2).exp() + in[0]; }, {"mm", "exp"}, 3);
  const auto through_views = [](const Tensors& in) {
    const at::Tensor h = in[0].mm(in[1]), before = h.sum();
    h.t().slice(0, 1, 3).mul_(3);
    h.view({-1}).add_(before);
    return h.sin() * in[0].mm(in[1]).relu_();
  };
  expect_same(through_views, {"mm"}, 2);
  expect_same([](const Tensors& in) { return torch::nn::functional::linear(in[0].view({2, 2, 8}), in[1], in[0][0]); },
              {"linear"});
}

TEST(KeptResults, ThatOthersWriteToAreRefused) {
  const auto written = [](const Tensors& in) {
    const at::Tensor h = in[0].mm(in[1]);
    to_local(h.detach()).add_(1);
    return h + in[0];
  };
  EXPECT_SAYS(failure_of(written, {"mm"}),
              "what aten::mm gave, float32[4, 8] {}, is kept for the second run, and was "
              "written to through a plain tensor");
  const auto handed_on = [](const Tensors& in) { return in[0].mm(in[1]); };
  EXPECT_SAYS(failure_of(handed_on, {"mm"}, [](at::Tensor& y) { y.mul_(2); }),
              "was written to in place since the first");
  EXPECT_EQ(failure_of(handed_on, {"mm"}, [](at::Tensor& y) { y = y * 2; }), "");
}

TEST(KeptResults, OfNamesThatMeanNothingAreRefused) {
  const auto says = [](const char* name) {
    return failure_of([](const Tensors& in) { return in[0].mm(in[1]); }, {name});
  };
  EXPECT_SAYS(says("matmull"), "keep \"matmull\": no operator is called so; did you mean \"matmul\"?");
  EXPECT_SAYS(says("aten::tanhh"), "no operator is called so; did you mean \"tanh\"?");
  EXPECT_SAYS(says("mul_"), "gives no new tensors of its own");
  EXPECT_SAYS(says("transpose"), "gives no new tensors of its own");
  for (const char* name : {"mm", "aten::mm", "aten::mul.Tensor", "aten::mul", "linear", "tessera::contract"}) {
    EXPECT_EQ(says(name), "") << name;
  }
  const auto of_plan = [](const Names& modules, const Names& keep) {
    return failure_on(1, [&](int64_t) {
      LlamaLoop(llama(), {.mesh = Mesh::parse("1"), .recompute = modules, .recompute_keep = keep});
    });
  };
  EXPECT_SAYS(of_plan({"model.layers.*"}, {"linea"}),
              "keep \"linea\": no operator is called so; did you mean \"linear\"?");
  EXPECT_SAYS(of_plan({}, {"linear"}), "recompute_keep \"linear\" has no effect where nothing is recomputed");
}

TEST(KeptResults, OfABodyThatDoesAnotherThingTheSecondTimeAreRefused) {
  const auto failure = [](const std::function<at::Tensor(const Tensors&, int)>& body) {
    int runs = 0;
    return failure_of([&](const Tensors& in) { return body(in, runs++); }, {"mm", "tanh"});
  };
  EXPECT_SAYS(failure([](const Tensors& in, int run) { return run == 0 ? in[0].mm(in[1]) : in[0].mm(in[1]).tanh(); }),
              "second run calls aten::tanh, where its first run called no more operators");
  EXPECT_SAYS(failure([](const Tensors& in, int run) { return (run == 0 ? in[0].tanh() : in[0]).mm(in[1]); }),
              "second run calls aten::mm, where its first run called aten::tanh");
  EXPECT_SAYS(failure([](const Tensors& in, int run) { return (run == 0 ? in[0].mm(in[1]).tanh() : in[0].mm(in[1])); }),
              "second run ended, where its first run called aten::tanh");
}

// Of a product whose input wants no gradient, nothing reads the weight in backward.
TEST(KeptResults, GatherNothing) {
  const auto gathers = [](const Names& keep) {
    int64_t found = 0;
    run_on(Mesh::parse("fsdp=2"), [&](int64_t rank) {
      torch::nn::Linear net(torch::nn::LinearOptions(8, 8).bias(false));
      const auto plan = parallel::generate_plan(*net, {.mesh = Mesh::parse("fsdp=2")});
      parallel::place(*net, plan);
      parallel::ForwardPasses passes(plan);
      const auto x = passes.begin({{"x", at::ones({4, 8})}})[0];
      const at::Tensor y =
          recompute([&](const Tensors& in) { return torch::linear(in[0], net->weight).tanh(); }, {x}, {.keep = keep});
      passes.end();
      auto& ledger = comm::RankContext::require().ledger;
      ledger.clear();
      dtensor::RankState::require().engine.drop_gathered();  // as if others had been gathered since
      y.sum().backward();
      if (rank == 0) {
        found = ledger.calls_of("all_gather", "fsdp");
      }
    });
    return found;
  };
  EXPECT_GT(gathers({"tanh"}), 0);
  EXPECT_EQ(gathers({"linear"}), 0);
}

}  // namespace
}  // namespace tessera::ranks::kept_results_test
