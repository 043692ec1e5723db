// Under `stock`, models begin with the values of plain construction, and training draws the masks of plain training.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/tessera.h"
#include "tests/ranks/module_values.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::stock_models_test {
namespace {

constexpr uint64_t kSeed = 23;

void expect_same(const Values& one, const Values& many, const std::string& where) {
  ASSERT_EQ(one.size(), many.size());
  for (const auto& [name, value] : one) {
    EXPECT_TRUE(at::equal(value, many.at(name))) << name << " " << where;
  }
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 50, config.dim = 48, config.layers = 2, config.heads = 8, config.max_seq = 16,
  config.dropout = 0.2;
  return config;
}

models::LlamaConfig llama() {
  models::LlamaConfig config;
  config.vocab_size = 51, config.dim = 48, config.layers = 2, config.heads = 8, config.kv_heads = 4, config.hidden = 40;
  config.max_seq = 16;
  return config;
}

// A mixed bag of libtorch's own modules and of initialisers that reach into a tensor.
struct BagImpl : torch::nn::Module {
  BagImpl() {
    namespace nn = torch::nn;
    first = register_module("first", nn::Linear(12, 20));
    table = register_module("table", nn::Embedding(nn::EmbeddingOptions(9, 12).padding_idx(2)));
    conv = register_module("conv", nn::Conv1d(4, 6, 3));
    second = register_module("second", nn::Linear(20, 12));
    noise = register_parameter("noise", torch::randn({6, 20}));
    order = register_buffer("order", torch::randperm(13));
    torch::NoGradGuard no_grad;
    noise.slice(1, 3, 17).normal_(0, 2);
    noise.select(0, 1).uniform_();
    second->weight.t().normal_();
    torch::nn::init::orthogonal_(first->weight);
    after = register_parameter("after", torch::rand({7}).mul_(2));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Embedding table{nullptr};
  torch::nn::Conv1d conv{nullptr};
  at::Tensor noise, order, after;
};
TORCH_MODULE(Bag);

template <typename Make>
void expect_initial(const char* name, const Make& make, int64_t heads, int64_t kv_heads) {
  at::manual_seed(kSeed);
  const Values one = values_of(*make());
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  for (const char* text : {"dp=1", "dp=4", "tp=2", "tp=3", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      set_generator(GeneratorKind::kStock);
      manual_seed(kSeed);
      auto model = deferred(make);
      EXPECT_TRUE(at::equal(stock_generator().get_state(), state)) << name << text;
      at::rand({5});  // what is drawn before the model gets its values does not change them
      place(*model, generate_plan(*model, {.mesh = mesh, .heads = heads, .kv_heads = kv_heads}));
      expect_same(one, values_of(*model), std::string(name) + " on " + text);
    });
  }
}

TEST(StockModels, InitialValuesAreThoseOfPlainConstruction) {
  expect_initial("gpt", [] { return models::Gpt(gpt()); }, 8, 8);
  expect_initial("llama", [] { return models::Llama(llama()); }, 8, 4);
  expect_initial("bag", [] { return Bag(); }, 0, 0);
  expect_initial(
      "llama in bfloat16",
      [] {
        auto model = models::Llama(llama());
        model->to(at::kBFloat16);
        return model;
      },
      8, 4);
}

// Masks in the order in which they are drawn: what bernoulli_ left.
thread_local std::vector<at::Tensor>* masks_seen = nullptr;

std::unique_ptr<at::ObserverContext> ignore_call(const at::RecordFunction&) { return nullptr; }

void keep_mask(const at::RecordFunction& call, at::ObserverContext*) {
  if (!masks_seen || std::string(call.name()) != "aten::bernoulli_") {
    return;
  }
  static thread_local at::Tensor last;
  const at::Tensor mask = call.outputs().at(0).toTensor();
  // On a rank the draws of a part are plain, and interception calls an operator twice.
  if ((dtensor::RankState::current() && !is_dtensor(mask)) || mask.is_same(last)) {
    return;
  }
  last = mask;
  masks_seen->push_back(mask.detach().clone());
}

template <typename Body>
std::vector<at::Tensor> masks_of(const Body& body) {
  std::vector<at::Tensor> found;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(ignore_call, keep_mask).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  masks_seen = &found;
  body();
  masks_seen = nullptr;
  at::removeCallback(handle);
  return found;
}

struct Trained {
  std::vector<at::Tensor> masks;
  at::Tensor state;
  double loss = 0;
};

constexpr int kSteps = 5;

// Plain SGD on a batch that each step has its own.
template <typename Model, typename Distribute>
double train(Model& model, const Distribute& on_mesh) {
  double last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor ids = on_mesh((at::arange(4 * 9) * (step + 3) % 50).view({4, 9}));
    const at::Tensor logits = model->forward(ids.slice(1, 0, 8));
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1, 9).flatten());
    loss.backward();
    at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.sub_(parameter.grad(), 0.05);
      parameter.mutable_grad() = at::Tensor();
    }
    last = loss.item<double>();
  }
  return last;
}

void expect_masks_of_training(bool fused) {
  auto config = gpt();
  config.fused_attention = fused;
  const auto make = [&] { return models::Gpt(config); };
  Trained expected;
  at::manual_seed(kSeed);
  auto plain = make();
  expected.masks = masks_of([&] { expected.loss = train(plain, [](const at::Tensor& ids) { return ids; }); });
  expected.state = at::detail::getDefaultCPUGenerator().get_state();
  ASSERT_EQ(expected.masks.size(), kSteps * (1 + 2 * 3));
  for (const char* text : {"dp=1", "dp=2", "tp=2", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      set_generator(GeneratorKind::kStock);
      manual_seed(kSeed);
      auto model = deferred(make);
      place(*model, generate_plan(*model, {.mesh = mesh, .heads = 8}));
      const Placements rows =
          std::string(text).starts_with("dp") ? layout::parse_placements(mesh, "{dp: S(0)}") : Placements(mesh.ndim());
      double loss = 0;
      const auto masks =
          masks_of([&] { loss = train(model, [&](const at::Tensor& ids) { return distribute(ids, mesh, rows); }); });
      EXPECT_TRUE(at::equal(stock_generator().get_state(), expected.state)) << text;
      EXPECT_NEAR(loss, expected.loss, 1e-4) << text;
      ASSERT_EQ(masks.size(), expected.masks.size()) << text;
      for (size_t i = 0; i < masks.size(); ++i) {
        EXPECT_GT(expected.masks[i].count_nonzero().item<int64_t>(), 0);
      }
      for (size_t i = 0; i < masks.size(); ++i) {
        EXPECT_TRUE(at::equal(full_tensor(masks[i]), expected.masks[i])) << text << " mask " << i;
      }
    });
  }
}

TEST(StockModels, MasksOfTrainingAreThoseOfPlainTraining) {
  expect_masks_of_training(false);
  expect_masks_of_training(true);
}

// The same through `parallelize`, whose steps cut the batch over the ranks.
TEST(StockModels, MasksOfJobsAreThoseOfPlainTraining) {
  const auto make = [] { return models::Gpt(gpt()); };
  const auto batch = [](int step) { return (at::arange(4 * 9) * (step + 3) % 50).view({4, 9}); };
  at::manual_seed(kSeed);
  auto plain = make();
  const auto expected = masks_of([&] {
    for (int step = 0; step < kSteps; ++step) {
      plain->loss(batch(step).slice(1, 0, 8), batch(step).slice(1, 1, 9)).backward();
    }
  });
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  for (const char* text : {"dp=1", "dp=2", "tp=2", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      set_generator(GeneratorKind::kStock);
      manual_seed(kSeed);
      auto model = deferred(make);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      const auto plan = generate_plan(*model, {.mesh = mesh, .heads = 8});
      place(*model, plan, &optimizer);
      Job job(model.ptr(), plan,
              [model](const std::vector<at::Tensor>& rows) mutable { return model->loss(rows[0], rows[1]); });
      const auto masks = masks_of([&] {
        for (int step = 0; step < kSteps; ++step) {
          job(batch(step).slice(1, 0, 8).contiguous(), batch(step).slice(1, 1, 9).contiguous()).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
      });
      EXPECT_TRUE(at::equal(stock_generator().get_state(), state)) << text;
      ASSERT_EQ(masks.size(), expected.size()) << text;
      for (size_t i = 0; i < masks.size(); ++i) {
        EXPECT_TRUE(at::equal(full_tensor(masks[i]), expected[i])) << text << " mask " << i;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::ranks::stock_models_test
