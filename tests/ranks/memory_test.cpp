// No rank ever holds the full model: bytes charged to the allocating rank, while the model is made, placed and trained.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/models/llama.h"
#include "tessera/tessera.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/heard_warnings.h"

namespace tessera::memory_test {
namespace {

using support::bytes_of;

// Everything else that construction may hold at once: scalars and the like.
constexpr int64_t kSlack = 4096;

models::LlamaConfig config() {
  models::LlamaConfig config;
  config.vocab_size = 512, config.dim = 128, config.layers = 2, config.heads = 4, config.kv_heads = 4,
  config.hidden = 384;
  config.max_seq = 32;
  return config;
}

int64_t model_bytes() {
  return 4 * models::parameter_count(*deferred([] { return models::Llama(config()); }));
}

// One rank's account.
struct Account {
  int64_t deferred_peak = 0;   // while the model was described
  int64_t placed_peak = 0;     // until it was placed
  int64_t placed_largest = 0;  // single block
  int64_t own = 0;             // its parts
  int64_t largest_part = 0;
  int64_t trained_peak = 0;  // three steps
  int64_t trained_largest = 0;
};

enum class Making { kDeferred, kWhole };

Account account_of_rank(const Mesh& mesh, Making making) {
  Account account;
  const int64_t rank = comm::RankContext::require().rank;
  const int64_t before = bytes_of(rank).live;
  support::reset_peak(rank);
  auto model = making == Making::kDeferred ? deferred([] { return models::Llama(config()); }) : models::Llama(config());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  account.deferred_peak = bytes_of(rank).peak - before;
  const Plan plan = generate_plan(*model, {.mesh = mesh, .heads = 4, .kv_heads = 4});
  place(*model, plan, &optimizer);
  account.placed_peak = bytes_of(rank).peak - before;
  account.placed_largest = bytes_of(rank).largest;
  for (const auto& parameter : model->parameters()) {
    const auto bytes = static_cast<int64_t>(to_local(parameter).nbytes());
    account.own += bytes;
    account.largest_part = std::max(account.largest_part, bytes);
  }

  support::reset_peak(rank);
  Job job(model.ptr(), plan,
          [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); });
  const auto tokens = at::arange(2 * 9).reshape({2, 9});
  for (int step = 0; step < 3; ++step) {
    job(tokens.slice(1, 0, 8), tokens.slice(1, 1, 9)).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  account.trained_peak = bytes_of(rank).peak - before;
  account.trained_largest = bytes_of(rank).largest;
  return account;
}

std::vector<Account> accounts(const std::string& text, Making making) {
  const auto mesh = Mesh::parse(text);
  std::vector<Account> all(mesh.size());
  run_ranks(mesh.size(), [&](int64_t rank) { all[rank] = account_of_rank(mesh, making); });
  return all;
}

// Whether construction stayed within a rank's own parts, one temporary of a part, and the slack.
bool stays_within_parts(const Account& account) {
  return account.placed_peak <= account.own + account.largest_part + kSlack &&
         account.placed_largest <= account.largest_part;
}

class Memory : public testing::Test {
 protected:
  static void SetUpTestSuite() { support::count_allocations(); }
};

TEST_F(Memory, TheCounterCharges) {
  const int64_t before = bytes_of(-1).live;
  run_ranks(2, [&](int64_t rank) {
    const int64_t mine = bytes_of(rank).live;
    support::reset_peak(rank);
    at::Tensor kept = at::zeros({250 * (rank + 1)});
    at::zeros({2000});
    EXPECT_EQ(bytes_of(rank).live - mine, 1000 * (rank + 1));
    EXPECT_EQ(bytes_of(rank).peak - mine, 1000 * (rank + 1) + 8000);
    EXPECT_EQ(bytes_of(rank).largest, 8000);
  });
  EXPECT_EQ(bytes_of(-1).live, before);
  EXPECT_EQ(bytes_of(0).live, 0);
  EXPECT_EQ(bytes_of(1).live, 0);
}

TEST_F(Memory, DescribingAModelTakesNone) {
  support::reset_peak(-1);
  const int64_t before = bytes_of(-1).live;
  const auto model = deferred([] { return models::Llama(config()); });
  EXPECT_EQ(bytes_of(-1).peak, before);
  for (const Account& account : accounts("tp=2", Making::kDeferred)) {
    EXPECT_EQ(account.deferred_peak, 0);
  }
}

TEST_F(Memory, NoRankHoldsTheModel) {
  const int64_t whole = model_bytes();
  for (const auto& [mesh, parts] : std::map<std::string, int64_t>{{"tp=4", 4}, {"tp=2", 2}, {"dp=2,tp=2", 2}}) {
    for (const Account& account : accounts(mesh, Making::kDeferred)) {
      SCOPED_TRACE(mesh + ": peak " + std::to_string(account.placed_peak) + ", own " + std::to_string(account.own) +
                   ", training " + std::to_string(account.trained_peak) + ", largest " +
                   std::to_string(account.trained_largest) + ", model " + std::to_string(whole));
      EXPECT_TRUE(stays_within_parts(account));
      EXPECT_LE(account.own, whole / parts + whole / 50);  // norms are whole on every rank
      EXPECT_LT(account.placed_peak, 0.75 * whole);
      // In training: the parts, their gradients and two moments, a gradient on its way, and activations of 16 tokens.
      // No single block is larger than a part.
      EXPECT_LE(account.trained_peak, 4 * account.own + account.largest_part + whole / 8);
      EXPECT_LE(account.trained_largest, account.largest_part + kSlack);
    }
  }
}

// Plain parameters that were placed are known by weak references, which keep their record.
TEST_F(Memory, AModelThatIsDroppedGoesWithTheNext) {
  for (const char* text : {"1", "dp=2", "tp=2", "fsdp=2"}) {
    SCOPED_TRACE(text);
    const auto mesh = Mesh::parse(text);
    std::vector<std::vector<int64_t>> live(mesh.size());
    run_ranks(mesh.size(), [&](int64_t rank) {
      for (int model = 0; model < 4; ++model) {
        account_of_rank(mesh, Making::kWhole);
        live[rank].push_back(bytes_of(rank).live);
      }
    });
    for (const auto& of_rank : live) {
      EXPECT_LE(of_rank[3], of_rank[1] + kSlack) << of_rank[0] << ", " << of_rank[1] << ", " << of_rank[2];
    }
  }
}

// One weight, whose gradient is all that takes memory: how many times its size the sums over samples take at most, on
// the rank that takes most.
double sums_over_weight(const std::string& mesh_text, int64_t accumulate) {
  constexpr int64_t kWidth = 512, kSamples = 16;
  const auto mesh = Mesh::parse(mesh_text);
  std::vector<double> times(mesh.size());
  run_ranks(mesh.size(), [&](int64_t rank) {
    dtensor::set_numerics(dtensor::Numerics::kExact);
    torch::nn::Linear model(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
    torch::nn::init::constant_(model->weight, 0.01);
    plan::Plan plan;
    plan.mesh = mesh;
    plan.batch_axes = {"dp"};
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable {
                        return torch::nn::functional::cross_entropy(model(batch[0]), batch[1]);
                      },
                      {.accumulate = accumulate});
    const at::Tensor inputs = at::arange(kSamples * kWidth, at::kFloat).sin().view({kSamples, kWidth}),
                     targets = at::arange(kSamples);
    const int64_t before = bytes_of(rank).live;
    support::reset_peak(rank);
    job(inputs, targets);
    times[rank] = static_cast<double>(bytes_of(rank).peak - before) / static_cast<double>(kWidth * kWidth * 4);
  });
  return *std::max_element(times.begin(), times.end());
}

// 1 + log2 of the batch leaves that the rank holds, however the step is cut into micro-batches; beside them sums on
// their way into these.
TEST_F(Memory, SumsThatWaitTakeABufferForEachDoublingOfLeaves) {
  for (int64_t accumulate : {1, 2, 3, 16}) {
    const double one = sums_over_weight("dp=1", accumulate), two = sums_over_weight("dp=2", accumulate),
                 all = sums_over_weight("dp=8", accumulate);
    std::cout << "accumulate " << accumulate << ": " << one << " weights on 1 rank, " << two << " on 2, " << all
              << " on 8\n";
    EXPECT_LE(one, 4 + 2.1);
    EXPECT_LE(two, 3 + 2.1);
    EXPECT_LE(all, 1 + 1.1);
  }
}

// A tower of equal weights in `fast`: how many times the size of one a step's gradients take at most.
double gradients_over_weight(int64_t layers, int64_t accumulate) {
  constexpr int64_t kWidth = 512, kSamples = 8;
  double times = 0;
  run_ranks(1, [&](int64_t rank) {
    dtensor::set_numerics(dtensor::Numerics::kFast);
    torch::nn::Sequential model;
    for (int64_t i = 0; i < layers; ++i) {
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    plan::Plan plan;
    plan.mesh = Mesh::parse("dp=1");
    plan.batch_axes = {"dp"};
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable {
                        return torch::nn::functional::cross_entropy(model->forward(batch[0]), batch[1]);
                      },
                      {.accumulate = accumulate});
    const at::Tensor inputs = at::ones({kSamples, kWidth}), targets = at::arange(kSamples);
    job(inputs, targets);
    const int64_t before = bytes_of(rank).live;
    support::reset_peak(rank);
    job(inputs, targets);
    times = static_cast<double>(bytes_of(rank).peak - before) / static_cast<double>(kWidth * kWidth * 4);
  });
  return times;
}

// The sums over the passes, and one pass's gradient on its way into them, with the product that it was copied from (the
// weight is read transposed): not a pass's gradients of the whole model.
TEST_F(Memory, GradientsOfAPassAreAddedAsTheyCome) {
  for (int64_t accumulate : {1, 2, 4}) {
    const double held = gradients_over_weight(/*layers=*/8, accumulate);
    std::cout << "accumulate " << accumulate << ": 8 weights' gradients take " << held << "\n";
    EXPECT_GE(held, 8);
    EXPECT_LE(held, 8 + 2.2);
  }
}

// Of heads on two ranks: what forward and backward hold at most beside their operands, in units of the [samples, heads,
// queries, keys] matrix of the rank's heads.
double attention_peak(bool is_causal, const std::optional<at::Tensor>& mask, double dropout = 0) {
  constexpr int64_t kLength = 256;
  const Mesh mesh = Mesh::parse("tp=2");
  std::vector<double> peaks(2);
  run_ranks(2, [&](int64_t rank) {
    std::vector<at::Tensor> operands;
    for (int i = 0; i < 3; ++i) {
      operands.push_back(distribute(at::randn({2, 4, kLength, 8}), mesh, "{tp: S(1)}").requires_grad_());
    }
    const int64_t before = bytes_of(rank).live;
    support::reset_peak(rank);
    at::scaled_dot_product_attention(operands[0], operands[1], operands[2], mask, dropout, is_causal).sum().backward();
    peaks[rank] =
        static_cast<double>(bytes_of(rank).peak - before) / static_cast<double>(2 * 2 * kLength * kLength * 4);
  });
  return *std::max_element(peaks.begin(), peaks.end());
}

TEST_F(Memory, AttentionHoldsNoMatrixOfQueriesAndKeys) {
  const double whole = attention_peak(false, {}), causal = attention_peak(true, {});
  const double masked = attention_peak(false, at::ones({256, 256}, at::kBool).tril());
  const double dropping = attention_peak(false, {}, /*dropout=*/0.5);
  std::cout << "peak of attention: " << whole << " matrices, causal " << causal << ", with a mask " << masked
            << ", with dropout " << dropping << "\n";
  EXPECT_LT(whole, 0.5);
  EXPECT_LT(causal, 0.5);
  EXPECT_LT(masked, 0.5);
  EXPECT_GT(dropping, 1);  // by parts: the measure sees matrices
}

TEST_F(Memory, AWholeModelFailsTheCheck) {
  const int64_t whole = model_bytes();
  for (const Account& account : accounts("tp=4", Making::kWhole)) {
    EXPECT_FALSE(stays_within_parts(account));
    EXPECT_GE(account.placed_peak, whole);
  }
}

// What is said when two ranks place a model of so many MiB that each made whole.
std::vector<std::string> warnings_of_placing(int64_t mebibytes) {
  support::HeardWarnings heard;
  run_ranks(2, [&] {
    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
    torch::nn::Linear model(torch::nn::LinearOptions(1024, mebibytes * 256).bias(false));
    place(*model, generate_plan(*model, {.mesh = Mesh::parse("tp=2")}));
  });
  return heard.said();
}

TEST_F(Memory, OnlyALargeModelThatWasMadeWholeIsWorthAWarning) {
  EXPECT_EQ(warnings_of_placing(1), std::vector<std::string>{});
  const auto warnings = warnings_of_placing(64);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("built without tessera::deferred: every rank held all of it (64 MiB)"), std::string::npos)
      << warnings[0];
}

}  // namespace
}  // namespace tessera::memory_test
