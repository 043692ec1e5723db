// What one Llama step sends over the tensor-parallel axis, against the closed form.

#include <gtest/gtest.h>
#include <torch/optim.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/models/llama.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera::ledger_test {
namespace {

constexpr int64_t kRanks = 4, kBatch = 2, kLength = 16, kDim = 32, kLayers = 2, kVocabulary = 64;
// One activation [batch, sequence, dim] of doubles, and what a rank sends of it in one all-gather or reduce-scatter of
// a ring.
constexpr int64_t kActivation = kBatch * kLength * kDim * 8;
constexpr int64_t kPass = kActivation * (kRanks - 1) / kRanks;

// The ledger of rank 0's forward and backward.
trace::Ledger ledger_of_step(bool sequence_parallel, bool keep_gathered, std::optional<sums::Lattice> lattice = {}) {
  models::LlamaConfig config;
  config.vocab_size = kVocabulary, config.dim = kDim, config.layers = kLayers, config.heads = 4, config.kv_heads = 4;
  config.hidden = 48, config.max_seq = kLength, config.dtype = at::kDouble;
  trace::Ledger ledger;
  const auto mesh = layout::Mesh::parse("tp=4");
  comm::run_ranks(kRanks, [&](int64_t rank) {
    dtensor::manual_seed(3);
    if (lattice) {
      dtensor::set_numerics(dtensor::Numerics::kExact, *lattice);
    }
    auto model = parallel::deferred([&] { return models::Llama(config); });
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh,
                                                       .sequence_parallel = sequence_parallel,
                                                       .heads = 4,
                                                       .kv_heads = 4,
                                                       .keep_gathered = keep_gathered,
                                                       .lattice = lattice});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
      return model->loss(batch[0], batch[1]);
    });
    comm::RankContext::require().ledger.clear();
    job(at::ones({kBatch, kLength}, at::kLong), at::ones({kBatch, kLength}, at::kLong)).backward();
    if (rank == 0) {
      ledger = comm::RankContext::require().ledger;
    }
  });
  return ledger;
}

int64_t bytes_of(const trace::Ledger& ledger, const std::string& collective) {
  return ledger.bytes_of(collective, "tp");
}
int64_t calls_of(const trace::Ledger& ledger, const std::string& collective) {
  return ledger.calls_of(collective, "tp");
}

// The loss with a cut vocabulary: for every token the maximum and the sum over the vocabulary, forward, and one sum
// backward; two scalars (the picked logits, the count of targets).
constexpr int64_t kTokenReduce = 2 * kBatch * kLength * 8 * (kRanks - 1) / kRanks,
                  kScalarReduce = 2 * 8 * (kRanks - 1) / kRanks;
constexpr int64_t kLossCalls = 5, kLossBytes = 3 * kTokenReduce + 2 * kScalarReduce;
// The gradients of the norms' weights [dim] are sums over the cut sequence.
constexpr int64_t kNorms = 2 * kLayers + 1, kNormBytes = kNorms * 2 * kDim * 8 * (kRanks - 1) / kRanks;
// Two halves a layer, forward and backward; beside them the embedding's forward and the head's backward.
constexpr int64_t kHalves = 2 * kLayers, kMerges = 2 * kHalves + 2;

TEST(Ledger, OneAllReducePerBlockHalf) {
  const trace::Ledger ledger = ledger_of_step(false, true);
  SCOPED_TRACE(ledger.json());
  EXPECT_EQ(calls_of(ledger, "all_reduce"), kMerges + kLossCalls);
  EXPECT_EQ(bytes_of(ledger, "all_reduce"), kMerges * 2 * kPass + kLossBytes);
  EXPECT_EQ(ledger.total_bytes(), bytes_of(ledger, "all_reduce"));
}

TEST(Ledger, SequenceParallelGathersAndScattersOnceAHalf) {
  const trace::Ledger ledger = ledger_of_step(true, true);
  SCOPED_TRACE(ledger.json());
  // The embedding scatters forward and gathers backward, the head gathers forward and scatters backward.
  EXPECT_EQ(calls_of(ledger, "all_gather"), kMerges);
  EXPECT_EQ(bytes_of(ledger, "all_gather"), kMerges * kPass);
  EXPECT_EQ(calls_of(ledger, "reduce_scatter"), kMerges);
  EXPECT_EQ(bytes_of(ledger, "reduce_scatter"), kMerges * kPass);
  EXPECT_EQ(bytes_of(ledger, "all_reduce"), kLossBytes + kNormBytes);
  EXPECT_EQ(ledger.total_bytes(), 2 * kMerges * kPass + kLossBytes + kNormBytes);
}

TEST(Ledger, RegatheringCostsOneAllGatherMoreForEachHalf) {
  const trace::Ledger ledger = ledger_of_step(true, false);
  SCOPED_TRACE(ledger.json());
  // The head's input was gathered last and is still there when its backward begins.
  EXPECT_EQ(bytes_of(ledger, "all_gather"), (kMerges + kHalves) * kPass);
  EXPECT_EQ(bytes_of(ledger, "reduce_scatter"), kMerges * kPass);
}

// Exact merges send what a ring would: one pass for a product whose result is cut, two for a whole one. Q, K and V
// merge each on their own in backward, as do gate and up.
TEST(Ledger, ExactMergesScatterUnderSequenceParallelism) {
  constexpr int64_t kProducts = (2 + 3 + 2) * kLayers + 1;
  const auto bytes_of_products = [](bool sequence_parallel) {
    int64_t bytes = 0;
    for (const trace::LedgerEntry& entry :
         ledger_of_step(sequence_parallel, true, sums::Lattice{.batch = 2, .sequence = 8, .feature = 8}).entries()) {
      if (entry.collective == "exact_merge" && entry.op == "tessera::contract") {
        bytes += entry.bytes;
      }
    }
    return bytes;
  };
  EXPECT_EQ(bytes_of_products(true), kProducts * kPass);
  EXPECT_EQ(bytes_of_products(false), kProducts * 2 * kPass);
}

// Of a rank that holds several nodes every one is sent: 8 leaves on 3 ranks are 3, 3 and 2, which are two nodes, two
// and one.
TEST(Ledger, ExactMergesCountTheNodesThatARankSends) {
  constexpr int64_t kRows = 6, kBytes = kRows * 8, kSent[] = {2 * kBytes, 2 * kBytes, 4 * kBytes / 3};
  const auto mesh = layout::Mesh::parse("tp=3");
  comm::run_ranks(3, [&](int64_t rank) {
    dtensor::set_numerics(dtensor::Numerics::kExact, {.batch = 1, .sequence = 1, .feature = 8});
    const auto x = dtensor::distribute(at::ones({kRows, 64}, at::kDouble), mesh, {layout::Shard(1, {.unit = 8})});
    trace::Ledger& ledger = comm::RankContext::require().ledger;
    ledger.clear();
    const auto sums = at::sum(x, {1});
    EXPECT_EQ(calls_of(ledger, "exact_merge"), 1) << ledger.json();
    EXPECT_EQ(bytes_of(ledger, "exact_merge"), kSent[rank]) << ledger.json();
    EXPECT_EQ(ledger.total_bytes(), kSent[rank]);
  });
}

// What a plan wants of activations is no business of an optimizer, whose moments lie as the parameters do.
template <typename Optimizer, typename Options>
int64_t bytes_of_optimizer(const Options& options) {
  models::LlamaConfig config;
  config.vocab_size = kVocabulary, config.dim = kDim, config.layers = 1, config.heads = 4, config.kv_heads = 4,
  config.hidden = 48;
  config.max_seq = kLength;
  int64_t bytes = 0;
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  comm::run_ranks(mesh.size(), [&](int64_t rank) {
    dtensor::manual_seed(3);
    auto model = parallel::deferred([&] { return models::Llama(config); });
    Optimizer optimizer(model->parameters(), options);
    const auto plan =
        parallel::generate_plan(*model, {.mesh = mesh, .sequence_parallel = true, .heads = 4, .kv_heads = 4});
    parallel::place(*model, plan, &optimizer);
    trace::Ledger& ledger = comm::RankContext::require().ledger;
    for (int64_t step = 0; step < 2; ++step) {
      const at::Tensor tokens =
          dtensor::distribute(at::ones({kBatch, kLength}, at::kLong), mesh, {layout::Shard(0), layout::Replicate()},
                              {{{.label = layout::Label::kBatch, .extent = kBatch, .total = kBatch}}, {}});
      model->loss(tokens, tokens).backward();
      for (const at::Tensor& parameter : model->parameters()) {
        parameter.mutable_grad() = dtensor::redistribute(parameter.grad(), dtensor::spec_of(parameter)->placements);
      }
      ledger.clear();
      optimizer.step();
      if (rank == 0) {
        bytes += ledger.total_bytes();
      }
    }
  });
  return bytes;
}

TEST(Ledger, OptimizersSendNothing) {
  EXPECT_EQ(bytes_of_optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3)), 0);
  EXPECT_EQ(bytes_of_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(1e-3).momentum(0.9).weight_decay(0.1)), 0);
}

}  // namespace
}  // namespace tessera::ledger_test
