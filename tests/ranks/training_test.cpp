// Both models, 20 steps on many meshes with an odd batch and a vocabulary that nothing divides: the losses, gradient
// norms and parameters of one device, in float64 to 1e-12 and in float32 but for rounding (docs/measured/rounding.md).

#include <typeinfo>

#include <gtest/gtest.h>

#include "tests/ranks/training_run.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::training_test {
namespace {

constexpr int64_t kHeads = 4;
const Setting kSetting = {.batch = 7, .length = 12, .vocabulary = 65, .learning_rate = 1e-4};

double error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / a.abs().max().clamp_min(1e-300)).item<double>();
}

// The K bias moves no output: its gradient is rounding alone, which AdamW scales up to its learning rate. GPT's fused
// bias holds those of q, k and v head by head.
bool holds_key_bias(const std::string& name) { return name.find("c_attn.bias") != std::string::npos; }

at::Tensor key_bias(const at::Tensor& fused) { return fused.view({kHeads, 3, -1}).select(1, 1); }

at::Tensor without_key_bias(const at::Tensor& fused) {
  const at::Tensor heads = fused.view({kHeads, 3, -1});
  return at::cat({heads.select(1, 0), heads.select(1, 2)});
}

template <typename Model, typename Config>
void expect_same(const Config& config, const Case& c, const Curve& one, double tolerance, double& worst) {
  SCOPED_TRACE(c.str());
  const Curve many = train<Model>(kSetting, config, c);
  ASSERT_EQ(many.losses.size(), one.losses.size());
  const auto compare = [&](double found, const std::string& what) {
    EXPECT_LE(found, tolerance) << what;
    worst = std::max(worst, found);
  };
  for (size_t i = 0; i < one.losses.size(); ++i) {
    compare(std::abs(many.losses[i] - one.losses[i]) / one.losses[i], "loss of step " + std::to_string(i));
    compare(std::abs(many.norms[i] - one.norms[i]) / one.norms[i], "gradient norm of step " + std::to_string(i));
  }
  for (const auto& [name, value] : one.parameters) {
    const at::Tensor& found = many.parameters.at(name);
    if (!holds_key_bias(name)) {
      compare(error(value, found), name);
      continue;
    }
    compare(error(without_key_bias(value), without_key_bias(found)), name);
    EXPECT_LE((key_bias(value) - key_bias(found)).abs().max().item().toDouble(),
              kSetting.learning_rate * static_cast<double>(kSetting.steps))
        << name;
  }
}

// Drawn for each test, which `key` names.
std::vector<Case> cases(const std::string& key) {
  std::vector<Case> all;
  for (const char* mesh : {"dp=2", "dp=3", "dp=4", "tp=2", "tp=3", "tp=4", "dp=2,tp=2"}) {
    for (int64_t accumulate : {1, 2, 3}) {
      for (bool sequence_parallel : {false, true}) {
        all.push_back({mesh, sequence_parallel, accumulate});
      }
    }
  }
  return support::sampled(all, 8, key);
}

template <typename Config>
Config sized(Config config, at::ScalarType dtype) {
  config.vocab_size = kSetting.vocabulary, config.dim = 32, config.layers = 2, config.heads = kHeads,
  config.max_seq = 16;
  config.dtype = dtype;
  return config;
}

template <typename Model, typename Config>
void expect_one_device_training(const Config& model) {
  const Config config = sized(model, at::kDouble);
  const Curve one = train<Model>(kSetting, config, {});
  const auto drawn = cases(c10::str(typeid(Model).name(), " in double"));
  double worst = 0;
  for (const Case& c : drawn) {
    expect_same<Model>(config, c, one, 1e-12, worst);
  }
  std::cout << "largest error over " << drawn.size() << " layouts: " << worst << "\n";
}

// In float32 every layout is as far from training in float64 as one device is, on whatever processor.
template <typename Model, typename Config>
void expect_rounding_of_one_device(const Config& model) {
  Setting setting = kSetting;
  setting.eps = 1e-6;  // keeps AdamW from scaling up the rounding of gradients that are nearly zero
  const Config config = sized(model, at::kFloat);
  const Curve in_doubles = train_in_doubles<Model>(setting, config);
  const Distance by_one = distance(train<Model>(setting, config, {}), in_doubles);
  const auto drawn = cases(c10::str(typeid(Model).name(), " in float"));
  double worst = 0;
  for (const Case& c : drawn) {
    const Distance by_many = distance(train<Model>(setting, config, c), in_doubles);
    EXPECT_LE(times_as_far(by_many, by_one), kRounding)
        << c.str() << ": " << str(by_many) << "; one device: " << str(by_one);
    worst = std::max(worst, times_as_far(by_many, by_one));
  }
  std::cout << "at most " << worst << " times as far from float64 over " << drawn.size()
            << " layouts; one device: " << str(by_one) << "\n";
}

models::LlamaConfig llama() {
  models::LlamaConfig config;
  config.kv_heads = kHeads, config.hidden = 48;
  return config;
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.dropout = 0.1;
  return config;
}

TEST(Training, LlamaInDouble) { expect_one_device_training<models::Llama>(llama()); }
TEST(Training, LlamaInFloat) { expect_rounding_of_one_device<models::Llama>(llama()); }
TEST(Training, GptInDouble) { expect_one_device_training<models::Gpt>(gpt()); }
TEST(Training, GptInFloat) { expect_rounding_of_one_device<models::Gpt>(gpt()); }

}  // namespace
}  // namespace tessera::ranks::training_test
