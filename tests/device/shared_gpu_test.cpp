// Ranks as threads that share one GPU: what every collective gives, bit for bit, from streams of their own too; and a
// language model trained on many meshes.
#include <torch/torch.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/tessera.h"
#include "tests/unit/comm/collective_cases.h"
#include "tests/unit/comm/support.h"

namespace tessera::shared_gpu_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);

void verify_table() {
  for (const auto& each : comm::collective_cases()) {
    const auto sizes = each.depends_on_sample ? std::vector<int64_t>{0, 1, 3, 1031, 40013} : std::vector<int64_t>{1031};
    for (const auto size : sizes) {
      for (const auto dtype : each.depends_on_sample ? comm::collective_types() : std::vector{at::kFloat}) {
        const comm::Sample sample{size, dtype, comm::combine_members, kGpu};
        for (const auto& outcome : each.run(comm::world(), sample)) {
          ASSERT_TRUE(comm::identical(outcome.got, outcome.expected))
              << comm::describe(each, comm::world(), sample, outcome);
        }
      }
    }
  }
}

class SharedGpu : public testing::TestWithParam<int64_t> {};

TEST_P(SharedGpu, CollectivesGiveWhatTheTableSays) {
  run_ranks(GetParam(), [](int64_t) { verify_table(); });
}

// Each rank's current stream is its own, and busy.
TEST_P(SharedGpu, CollectivesWaitForStreamsOfTheRanksOwn) {
  run_ranks(GetParam(), [](int64_t rank) {
    const c10::impl::VirtualGuardImpl streams(at::kCUDA);
    const c10::StreamGuard guard(streams.getStreamFromGlobalPool(kGpu, /*isHighPriority=*/rank % 2 == 0));
    const at::Tensor heavy = at::ones({2048, 2048}, kGpu);
    for (int round = 0; round < 20; ++round) {
      at::Tensor value = at::full({1000}, static_cast<double>(rank + round), kGpu);
      for (int i = 0; i < 20; ++i) {
        value = value + heavy.mm(heavy)[0][0] * 0;
      }
      comm::world().all_reduce(value, comm::ReduceOp::kSum)->wait();
      const auto ranks = static_cast<double>(comm::world().size());
      ASSERT_TRUE(value.eq(ranks * (ranks - 1) / 2 + ranks * round).all().item<bool>()) << "round " << round;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedGpu, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

constexpr int64_t kBatch = 8, kLength = 12, kVocabulary = 65, kSteps = 6;

template <typename Model, typename Config>
std::vector<double> train(const Config& config, const std::string& mesh, bool sequence_parallel) {
  return run_ranks(Mesh::parse(mesh).size(), [&] {
    manual_seed(7);
    Model model(config);
    model->to(kGpu);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const Plan plan = generate_plan(
        *model, {.mesh = Mesh::parse(mesh), .sequence_parallel = sequence_parallel, .heads = 4, .kv_heads = 4});
    place(*model, plan, &optimizer);
    Job job(model.ptr(), plan,
            [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); });
    std::vector<double> losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor tokens = (at::arange(kBatch * (kLength + 1)) * (step + 3)).remainder(kVocabulary);
      const at::Tensor rows = tokens.view({kBatch, kLength + 1}).to(kGpu);
      const at::Tensor loss = job(rows.slice(1, 0, kLength), rows.slice(1, 1));
      loss.backward();
      clip_grad_norm(model->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.item<double>());
    }
    return losses;
  });
}

template <typename Model, typename Config>
void expect_one_rank_training(Config config) {
  config.vocab_size = kVocabulary, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 16;
  config.dtype = at::kDouble;
  const auto one = train<Model>(config, "dp=1", false);
  ASSERT_NE(one.back(), one.front());
  for (const char* mesh : {"dp=2", "tp=2", "dp=2,tp=2", "fsdp=2", "fsdp=2,tp=2", "pp=2"}) {
    const auto many = train<Model>(config, mesh, std::string(mesh).find("tp") != std::string::npos);
    for (size_t step = 0; step < one.size(); ++step) {
      EXPECT_NEAR(many[step], one[step], 1e-10) << mesh << ", step " << step;
    }
  }
}

TEST(SharedGpuTraining, OfAGptWithDropoutIsThatOfOneRank) {
  expect_one_rank_training<models::Gpt>(models::GptConfig());
}

TEST(SharedGpuTraining, OfALlamaIsThatOfOneRank) {
  models::LlamaConfig config;
  config.kv_heads = 4, config.hidden = 48;
  expect_one_rank_training<models::Llama>(config);
}

TEST(SharedGpuTraining, ExactSaysThatItsSumsAreMadeOnCpus) {
  const auto text = comm::message_from<c10::Error>([] {
    run_ranks(2, [](int64_t) {
      set_numerics(Numerics::kExact);
      const auto x = distribute(at::ones({4, 4}, kGpu), Mesh::parse("tp=2"), "{tp: S(0)}");
      at::mm(x, x.t());
    });
  });
  EXPECT_TRUE(comm::contains(text, "numerics exact: an operand on cuda:0")) << text;
}

}  // namespace
}  // namespace tessera::shared_gpu_test
