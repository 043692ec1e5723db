// Deferred construction: the values of one-device construction, bit for bit, on every mesh; and what cannot be deferred
// says so.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/tessera.h"
#include "tests/ranks/module_values.h"

namespace tessera::deferred_test {
namespace {

void expect_same(const Values& one, const Values& many) {
  ASSERT_EQ(one.size(), many.size());
  for (const auto& [name, value] : one) {
    const at::Tensor& other = many.at(name);
    EXPECT_EQ(value.scalar_type(), other.scalar_type()) << name;
    EXPECT_TRUE(at::equal(value, other)) << name;
  }
}

// What the constructor makes on the only rank of a job, without `deferred`.
template <typename Make>
Values constructed(const Make& make) {
  return run_ranks(1, [&] {
    manual_seed(5);
    return values_of(*make());
  });
}

using Check = std::function<void(const torch::nn::Module&)>;

template <typename Make>
Values placed(const Make& make, const std::string& mesh_text, int64_t heads = 0, int64_t kv_heads = 0,
              const Check& check = {}) {
  const auto mesh = Mesh::parse(mesh_text);
  return run_ranks(mesh.size(), [&] {
    manual_seed(5);
    auto model = deferred(make);
    place(*model, generate_plan(*model, {.mesh = mesh, .heads = heads, .kv_heads = kv_heads}));
    if (check) {
      check(*model);
    }
    return values_of(*model);
  });
}

const std::vector<std::string> kMeshes = {"1", "dp=4", "tp=2", "tp=4", "dp=2,tp=2", "tp=3"};

models::LlamaConfig llama(int64_t kv_heads) {
  models::LlamaConfig config;
  config.vocab_size = 50, config.dim = 48, config.layers = 2, config.heads = 8, config.kv_heads = kv_heads,
  config.hidden = 40;
  config.max_seq = 16;
  return config;
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 50, config.dim = 48, config.layers = 2, config.heads = 8, config.max_seq = 16;
  return config;
}

TEST(Initial, LlamaIsThatOfOneDevice) {
  for (const int64_t kv_heads : {8, 4, 2}) {
    const auto make = [&] { return models::Llama(llama(kv_heads)); };
    const Values one = constructed(make);
    for (const std::string& mesh : kMeshes) {
      SCOPED_TRACE(mesh + " kv_heads " + std::to_string(kv_heads));
      expect_same(one, placed(make, mesh, 8, kv_heads));
    }
  }
}

TEST(Initial, GptIsThatOfOneDevice) {
  for (const bool is_tied : {true, false}) {
    auto config = gpt();
    config.tie_embeddings = is_tied;
    const auto make = [&] { return models::Gpt(config); };
    const Values one = constructed(make);
    for (const std::string& mesh : kMeshes) {
      SCOPED_TRACE(mesh);
      expect_same(one, placed(make, mesh, 8, 8));
    }
  }
}

TEST(Initial, EightHeadsOverThreeRanks) {
  const auto rows = [](const torch::nn::Module& model, const std::string& name) {
    return to_local(model.named_parameters()[name]).size(0);
  };
  std::array<std::vector<int64_t>, 3> q, q_grouped, k_grouped, fused;
  const auto rank = [] { return comm::RankContext::require().rank; };
  placed([] { return models::Llama(llama(8)); }, "tp=3", 8, 8,
         [&](const torch::nn::Module& model) {
           q[rank()] = {rows(model, "model.layers.0.self_attn.q_proj.weight"),
                        rows(model, "model.layers.1.self_attn.v_proj.weight")};
         });
  placed([] { return models::Llama(llama(2)); }, "tp=3", 8, 2,
         [&](const torch::nn::Module& model) {
           q_grouped[rank()] = {rows(model, "model.layers.0.self_attn.q_proj.weight")};
           k_grouped[rank()] = {rows(model, "model.layers.0.self_attn.k_proj.weight")};
         });
  placed([] { return models::Gpt(gpt()); }, "tp=3", 8, 8,
         [&](const torch::nn::Module& model) { fused[rank()] = {rows(model, "transformer.h.0.attn.c_attn.weight")}; });
  const int64_t head = 6;
  for (size_t r = 0; r < 3; ++r) {
    const int64_t heads = r < 2 ? 3 : 2;
    EXPECT_EQ(q[r], (std::vector<int64_t>{heads * head, heads * head}));
    EXPECT_EQ(q_grouped[r], (std::vector<int64_t>{heads * head}));
    EXPECT_EQ(k_grouped[r], (std::vector<int64_t>{2 * head}));  // fewer groups than ranks: whole
    EXPECT_EQ(fused[r], (std::vector<int64_t>{3 * heads * head}));
  }
}

// A model with its own ways to begin.
struct OwnImpl : torch::nn::Module {
  OwnImpl() {
    embed = register_module("embed", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 6).padding_idx(3)));
    fused = register_module("fused", torch::nn::Linear(6, 18));
    out = register_module("out", torch::nn::Linear(18, 6));
    scaled = register_parameter("scaled", torch::randn({10, 6}) * 0.02);
    turned = register_parameter("turned", torch::rand({6, 10}).t());
    frozen = register_parameter("frozen", torch::full({7}, 2.5), /*requires_grad=*/false);
    steps = register_buffer("steps", torch::arange(9));
    mask = register_buffer("mask", torch::ones({5, 5}).tril());
    order = register_buffer("order", torch::randperm(12));
    torch::NoGradGuard no_grad;
    embed->weight.index({0}).zero_();
    embed->weight.index({torch::indexing::Slice(4, 9), 2}).fill_(7);
    embed->weight.index({torch::indexing::Slice(1, 10, 3)}).mul_(2);
    for (auto& part : fused->weight.chunk(3)) {
      torch::nn::init::xavier_uniform_(part);
    }
    fused->weight[5].copy_(fused->weight[6]);
    fused->weight.narrow(0, 2, 9).narrow(1, 1, 3)[4].add_(1);
    fused->bias.unbind()[17].fill_(-3);
    torch::nn::init::kaiming_normal_(out->weight, std::sqrt(5));
    torch::nn::init::constant_(out->bias, 0.5);
    out->weight.t()[8].normal_();
    for (auto& parameter : out->parameters()) {
      parameter.mul_(1.5).clamp_(-2, 2);
    }
    scaled.copy_(scaled.abs().sqrt());
    mask.masked_fill_(mask == 0, -1);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear fused{nullptr}, out{nullptr};
  at::Tensor scaled, turned, frozen, steps, mask, order;
};
TORCH_MODULE(Own);

// `dim` cut on the last axis.
Placements cut(const Mesh& mesh, int64_t dim) {
  Placements placements(mesh.ndim());
  placements.back() = Shard(dim);
  return placements;
}

Plan cut_everything(const std::string& text) {
  const auto mesh = Mesh::parse(text);
  Plan plan;
  plan.mesh = mesh;
  plan.parameters = {{"embed.weight", cut(mesh, 0), {}, {}},
                     {"fused.*", cut(mesh, 0), {}, {}},
                     {"out.weight", cut(mesh, 1), {}, {}},
                     {"scaled", cut(mesh, 0), {}, {}},
                     {"turned", cut(mesh, 1), {}, {}}};
  return plan;
}

TEST(Initial, OwnLoopsReachEveryRank) {
  const auto make = [] { return Own(); };
  const Values one = constructed(make);
  EXPECT_EQ(one.at("embed.weight")[3].abs().sum().item<double>(), 0);
  EXPECT_EQ(one.at("fused.bias")[17].item<double>(), -3);
  for (const std::string mesh : {"tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2"}) {
    SCOPED_TRACE(mesh);
    const Plan plan = cut_everything(mesh);
    const Values many = run_ranks(plan.mesh.size(), [&] {
      manual_seed(5);
      auto model = deferred(make);
      EXPECT_TRUE(is_deferred(model->embed->weight));
      place(*model, plan);
      EXPECT_TRUE(plan.mesh.size() == 1 || spec_of(model->scaled)->placements == plan.parameters[3].storage);
      EXPECT_TRUE(model->scaled.requires_grad());
      EXPECT_FALSE(model->frozen.requires_grad());
      return values_of(*model);
    });
    expect_same(one, many);
  }
}

// Draws from a generator of its own.
struct NamedImpl : torch::nn::Module {
  explicit NamedImpl(const std::optional<at::Generator>& generator) {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 6));
    at::NoGradGuard no_grad;
    first->weight.normal_(0, 1, generator);
    register_buffer("noise", torch::randn({5}, generator));
    register_buffer("order", torch::randperm(9, generator));
    second->weight.uniform_(-1, 1, generator);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(Initial, OfAGeneratorThatIsNamed) {
  const std::optional<at::Generator> generator = at::detail::createCPUGenerator(5);
  const Values one = values_of(NamedImpl(generator));
  const at::Tensor after = torch::rand({3}, generator);
  for (const std::string mesh_text : {"tp=2", "tp=3", "dp=2,tp=2"}) {
    const auto mesh = Mesh::parse(mesh_text);
    for (const GeneratorKind kind : {GeneratorKind::kCounter, GeneratorKind::kStock}) {
      const Values many = run_ranks(mesh.size(), [&] {
        set_generator(kind);
        const std::optional<at::Generator> own = at::detail::createCPUGenerator(5);
        auto model = deferred([&] { return std::make_shared<NamedImpl>(own); });
        EXPECT_TRUE(at::equal(torch::rand({3}, own), after));
        place(*model, generate_plan(*model, {.mesh = mesh}));
        EXPECT_TRUE(spec_of(model->first->weight)->placements != layout::Placements(mesh.ndim()));
        return values_of(*model);
      });
      for (const char* name : {"first.weight", "noise", "order", "second.weight"}) {
        EXPECT_TRUE(at::equal(many.at(name), one.at(name))) << name << mesh_text;
      }
    }
  }
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width = 8) {
    first = register_module("first", torch::nn::Linear(6, width));
    second = register_module("second", torch::nn::Linear(width, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))).square().mean(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

TEST(Deferred, ConversionInsideOrAfterTheBlock) {
  const auto inside = [] {
    Net net;
    net->to(torch::kDouble);
    return net;
  };
  const Values one = constructed(inside);
  EXPECT_EQ(one.at("first.weight").scalar_type(), at::kDouble);
  const auto mesh = Mesh::parse("tp=2");
  const auto run = [&](bool after) {
    return run_ranks(2, [&] {
      manual_seed(5);
      auto net = after ? deferred([] { return Net(); }) : deferred(inside);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      if (after) {
        net->to(torch::kDouble);
        torch::NoGradGuard no_grad;
        net->first->weight.mul_(1);
      }
      place(*net, generate_plan(*net, {.mesh = mesh}), &optimizer);
      return values_of(*net);
    });
  };
  expect_same(one, run(false));
  expect_same(one, run(true));
}

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embed = register_module("embed", torch::nn::Embedding(10, 6));
    head = register_module("head", Head(embed->weight));
  }
  torch::nn::Embedding embed{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(Tied);

TEST(Deferred, TiedWeightsStayOneTensor) {
  const auto make = [] { return Tied(); };
  const Values one = constructed(make);
  const Values many = placed(make, "tp=3", 0, 0, [](const torch::nn::Module& model) {
    const auto& tied = *model.as<Tied>();
    EXPECT_TRUE(tied.head->weight.is_same(tied.embed->weight));
    EXPECT_TRUE(is_dtensor(tied.head->weight));
    EXPECT_LT(to_local(tied.head->weight).size(0), 10);
  });
  expect_same(one, many);
}

// Two models of one program: the values do not depend on which is placed first.
TEST(Deferred, TwoBlocks) {
  const auto build = [](bool is_deferred, bool swapped) {
    return run_ranks(is_deferred ? 2 : 1, [&] {
      manual_seed(5);
      const auto make = [&](int64_t width) { return is_deferred ? deferred([&] { return Net(width); }) : Net(width); };
      Net a = make(8), b = make(8);
      if (is_deferred) {
        Net &first = swapped ? b : a, &second = swapped ? a : b;
        const auto mesh = Mesh::parse("tp=2");
        place(*first, generate_plan(*first, {.mesh = mesh}));
        place(*second, generate_plan(*second, {.mesh = mesh}));
      }
      return std::vector<Values>{values_of(*a), values_of(*b)};
    });
  };
  const auto plain = build(false, false);
  EXPECT_FALSE(at::equal(plain[0].at("first.weight"), plain[1].at("first.weight")));
  for (const bool swapped : {false, true}) {
    const auto both = build(true, swapped);
    expect_same(plain[0], both[0]);
    expect_same(plain[1], both[1]);
  }
}

TEST(Deferred, PlansWithoutRanksOrMemory) {
  models::LlamaConfig config;
  config.vocab_size = 128000, config.dim = 8192, config.layers = 2, config.heads = 64, config.kv_heads = 8,
  config.hidden = 28672;
  auto model = deferred([&] { return models::Llama(config); });
  const Plan plan = generate_plan(*model, {.mesh = Mesh::parse("dp=1250,tp=8"), .heads = 64, .kv_heads = 8});
  EXPECT_EQ(plan.mesh.size(), 10000);
  EXPECT_GT(models::parameter_count(*model), 3800000000);
}

// The state of an optimizer built before `place` is that of one built after it.
TEST(Deferred, OptimizerBeforeOrAfter) {
  const auto mesh = Mesh::parse("dp=2,tp=2");
  const auto batch = at::arange(30, at::kDouble).reshape({5, 6}).sin();
  const auto train = [&](bool before, bool has_steps) {
    return run_ranks(4, [&] {
      manual_seed(5);
      const auto make = [] {
        Net net;
        net->to(torch::kDouble);
        return net;
      };
      Net net = has_steps ? make() : deferred(make);
      std::unique_ptr<torch::optim::AdamW> optimizer;
      const auto build = [&] {
        optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.05));
      };
      if (before) {
        build();
      }
      if (has_steps) {
        if (!before) {
          build();
        }
        net->forward(batch.clone()).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      const Plan plan = generate_plan(*net, {.mesh = mesh});
      place(*net, plan, before || has_steps ? optimizer.get() : nullptr);
      if (!optimizer) {
        build();
      }
      Job job(net.ptr(), plan, [net](const std::vector<at::Tensor>& rows) mutable { return net(rows[0]); });
      for (int step = 0; step < 3; ++step) {
        job(batch).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      return values_of(*net);
    });
  };
  expect_same(train(true, false), train(false, false));
  // Steps taken on plain tensors before count too.
  const Values late = train(true, true);
  const Values alone = run_ranks(1, [&] {
    manual_seed(5);
    Net net;
    net->to(torch::kDouble);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      net->forward(batch.clone()).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    return values_of(*net);
  });
  for (const auto& [name, value] : alone) {
    EXPECT_TRUE(at::allclose(value, late.at(name), 1e-12, 1e-12)) << name;
  }
}

// Adagrad keeps state from its construction on, RMSprop from its first step: both go on from it when the model is
// placed.
TEST(Deferred, StateOfOtherOptimizers) {
  const auto batch = at::arange(30, at::kDouble).reshape({5, 6}).sin();
  const auto train = [&](const std::string& mesh, const auto& build) {
    return run_ranks(Mesh::parse(mesh).size(), [&] {
      manual_seed(5);
      Net net;
      net->to(torch::kDouble);
      const auto optimizer = build(net->parameters());
      const auto step = [&](const at::Tensor& loss) {
        loss.backward();
        optimizer->step();
        optimizer->zero_grad();
      };
      step(net->forward(batch.clone()));
      auto job = parallelize(net, generate_plan(*net, {.mesh = Mesh::parse(mesh)}), *optimizer);
      for (int i = 0; i < 2; ++i) {
        step(job(batch));
      }
      return values_of(*net);
    });
  };
  const auto compare = [&](const auto& build) {
    const Values alone = train("1", build);
    for (const auto& [name, value] : train("dp=2,tp=2", build)) {
      EXPECT_TRUE(at::allclose(value, alone.at(name), 1e-12, 1e-12)) << name;
    }
  };
  compare([](const auto& parameters) {
    return std::make_unique<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(0.05));
  });
  compare([](const auto& parameters) {
    return std::make_unique<torch::optim::RMSprop>(parameters,
                                                   torch::optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
  });
}

template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return base::message_of(error);
  }
  return "no error";
}

TEST(DeferredRefused, ReadingAValueInAConstructor) {
  const auto message = error_of([] {
    deferred([] {
      torch::nn::Linear linear(4, 4);
      if (linear->weight.sum().item<double>() > 0) {
        linear->bias.detach().zero_();
      }
      return linear;
    });
  });
  EXPECT_NE(message.find("[deferred] the value of a tensor is read"), std::string::npos) << message;
}

// Writes to what it sees of a row, or of rows, in another form.
struct WriterImpl : torch::nn::Module {
  explicit WriterImpl(bool to_row) {
    weight = register_parameter("weight", torch::ones({6, 4}));
    torch::NoGradGuard no_grad;
    to_row ? weight[2].view({2, 2}).zero_() : weight.narrow(0, 1, 3).t().select(0, 1).zero_();
  }
  at::Tensor weight;
};

TEST(DeferredRefused, WritingToAViewOfAViewAlongACutDim) {
  for (const bool to_row : {true, false}) {
    const auto run = [&](const std::string& text) {
      const Mesh mesh = Mesh::parse(text);
      return run_ranks(mesh.size(), [&] {
        auto model = deferred([&] { return std::make_shared<WriterImpl>(to_row); });
        Plan plan;
        plan.mesh = mesh;
        plan.parameters = {{"weight", cut(mesh, 0), {}, {}}};
        place(*model, plan);
        return values_of(*model).at("weight");
      });
    };
    EXPECT_TRUE(at::equal(run("tp=1"), values_of(WriterImpl(to_row)).at("weight")));
    const auto message = error_of([&] { run("tp=2"); });
    EXPECT_NE(message.find("the constructor writes (aten::zero_) to a view of a view along a dim that ranks cut"),
              std::string::npos)
        << message;
  }
}

TEST(DeferredRefused, UsingAModelBeforeItIsPlaced) {
  const auto message = error_of([] {
    run_ranks(2, [] {
      auto net = deferred([] { return Net(); });
      net(at::ones({3, 6})).backward();
    });
  });
  EXPECT_NE(message.find("from `deferred` is used before it has a value"), std::string::npos) << message;
  EXPECT_NE(message.find("parallelize(model, plan, optimizer)"), std::string::npos) << message;
}

TEST(DeferredRefused, PlacingTwice) {
  const auto message = error_of([] {
    run_ranks(2, [] {
      auto net = deferred([] { return Net(); });
      const Plan plan = generate_plan(*net, {.mesh = Mesh::parse("tp=2")});
      place(*net, plan);
      place(*net, plan);
    });
  });
  EXPECT_NE(message.find("is a DTensor already"), std::string::npos) << message;
}

TEST(DeferredRefused, MemoryWithOtherOwners) {
  const auto message = error_of([] {
    run_ranks(2, [] {
      Net net;
      const at::Tensor row = net->first->weight.detach()[0];
      place(*net, generate_plan(*net, {.mesh = Mesh::parse("tp=2")}));
    });
  });
  EXPECT_NE(message.find("the memory of `first.weight` is shared"), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera::deferred_test
