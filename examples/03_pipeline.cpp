// A classifier of short texts: ordinary libtorch. 01 trains it on one device; 03 on the mesh that it is told, in
// micro-batches, whose stages (of a pp axis) go by a schedule: 03_pipeline pp=4 1f1b. The model and the loop are 02's.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <tessera/tessera.h>
#include <torch/torch.h>

constexpr int64_t kWords = 64, kClasses = 5, kLength = 12, kBatch = 24, kSteps = 20;

// Words attend to each other, pass a small MLP, and vote for a class.
struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(int64_t dim, int64_t heads) : heads(heads) {
    embed = register_module("embed", torch::nn::Embedding(kWords, dim));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
    query = register_module("query", torch::nn::Linear(dim, dim));
    key = register_module("key", torch::nn::Linear(dim, dim));
    value = register_module("value", torch::nn::Linear(dim, dim));
    mix = register_module("mix", torch::nn::Linear(dim, dim));
    mlp = register_module("mlp", torch::nn::Sequential(torch::nn::Linear(dim, 4 * dim), torch::nn::GELU(),
                                                       torch::nn::Linear(4 * dim, dim)));
    head = register_module("head", torch::nn::Linear(dim, kClasses));
  }

  // The mean cross entropy of a batch.
  torch::Tensor forward(torch::Tensor words, torch::Tensor classes) {
    auto x = embed(words);
    const auto split = [&](const torch::Tensor& y) {
      return y.view({y.size(0), y.size(1), heads, -1}).transpose(1, 2);
    };
    const auto normed = norm(x);
    const auto q = split(query(normed)), k = split(key(normed)), v = split(value(normed));
    const auto attention =
        torch::softmax(q.matmul(k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1))), -1);
    x = x + mix(attention.matmul(v).transpose(1, 2).flatten(2));
    x = x + mlp->forward(x);
    return torch::nn::functional::cross_entropy(head(x.mean(1)), classes);
  }

  int64_t heads;
  torch::nn::Embedding embed{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, mix{nullptr}, head{nullptr};
  torch::nn::Sequential mlp{nullptr};
};
TORCH_MODULE(Classifier);

// Texts of random words; a text's class is the one that most of its words belong to.
std::pair<torch::Tensor, torch::Tensor> read_batch(int64_t step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  auto words = torch::empty({kBatch, kLength}, torch::kLong);
  for (int64_t i = 0; i < words.numel(); ++i) {
    words.data_ptr<int64_t>()[i] = random() % kWords;
  }
  return {words, torch::one_hot(words % kClasses, kClasses).sum(1).argmax(1)};
}

std::vector<double> train(const tessera::plan::PlanOptions& options) {
  torch::manual_seed(0);
  tessera::set_numerics(tessera::Numerics::kExact);  // the bits do not depend on the mesh
  auto model = tessera::deferred([] { return Classifier(32, 4); });
  auto optimizer = torch::optim::AdamW(model->parameters(), torch::optim::AdamWOptions(3e-3));
  auto plan = tessera::generate_plan(*model, options);
  auto job = tessera::parallelize(model, plan, optimizer, {.accumulate = 8});
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    auto [words, classes] = read_batch(step);
    auto loss = job(words, classes);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

int main(int argc, char** argv) {
  tessera::plan::PlanOptions options{.mesh = tessera::Mesh::parse(argc > 1 ? argv[1] : "1"), .heads = 4};
  options.schedule = argc > 2 ? argv[2] : "";
  const auto losses = tessera::run_ranks(options.mesh->size(), [&] { return train(options); });
  for (size_t step = 0; step < losses.size(); ++step) {
    std::printf("step %zu loss %.17g\n", step, losses[step]);
  }
  return 0;
}
