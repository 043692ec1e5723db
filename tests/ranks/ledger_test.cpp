// What one Llama step sends over the tensor-parallel axis, against the closed form.

#include <gtest/gtest.h>

#include "tessera/comm/run_ranks.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/models/llama.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera {
namespace {

constexpr int64_t kRanks = 4, kBatch = 2, kLength = 16, kDim = 32, kLayers = 2, kVocabulary = 64;
// One activation [batch, sequence, dim] of doubles, and what a rank sends of it in one all-gather or reduce-scatter of a ring.
constexpr int64_t kActivation = kBatch * kLength * kDim * 8;
constexpr int64_t kPass = kActivation * (kRanks - 1) / kRanks;

// The ledger of rank 0's forward and backward.
trace::Ledger ledger_of_step(bool sequence_parallel, bool keep_gathered) {
  models::LlamaConfig config;
  config.vocab_size = kVocabulary, config.dim = kDim, config.layers = kLayers, config.heads = 4, config.kv_heads = 4;
  config.hidden = 48, config.max_seq = kLength, config.dtype = at::kDouble;
  trace::Ledger ledger;
  const auto mesh = layout::Mesh::parse("tp=4");
  comm::run_ranks(kRanks, [&](int64_t rank) {
    dtensor::manual_seed(3);
    auto model = parallel::deferred([&] { return models::Llama(config); });
    const auto plan = parallel::generate_plan(
        *model, {.mesh = mesh, .sequence_parallel = sequence_parallel, .heads = 4, .kv_heads = 4, .keep_gathered = keep_gathered});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); });
    comm::RankContext::require().ledger.clear();
    job(at::ones({kBatch, kLength}, at::kLong), at::ones({kBatch, kLength}, at::kLong)).backward();
    if (rank == 0) ledger = comm::RankContext::require().ledger;
  });
  return ledger;
}

// Calls and bytes of the collectives that move whole activations; the loss's own (one number a token, or a scalar) stand apart.
struct Traffic {
  int64_t calls = 0, bytes = 0, small_bytes = 0;
};

Traffic traffic(const trace::Ledger& ledger, const std::string& collective) {
  Traffic sum;
  for (const auto& entry : ledger.entries()) {
    if (entry.collective != collective) continue;
    const bool whole = entry.bytes / entry.calls >= kPass;
    if (whole) sum.calls += entry.calls, sum.bytes += entry.bytes;
    if (!whole) sum.small_bytes += entry.bytes;
  }
  return sum;
}

TEST(Ledger, OneAllReducePerBlockHalf) {
  const trace::Ledger ledger = ledger_of_step(false, true);
  SCOPED_TRACE(ledger.json());
  const Traffic reduced = traffic(ledger, "all_reduce");
  // Two halves a layer, forward and backward; the embedding's forward and the head's backward.
  EXPECT_EQ(reduced.calls, 2 * (2 * kLayers) + 2);
  EXPECT_EQ(reduced.bytes, reduced.calls * 2 * kPass);
  EXPECT_EQ(traffic(ledger, "all_gather").bytes, 0);
  EXPECT_EQ(traffic(ledger, "reduce_scatter").bytes, 0);
  EXPECT_EQ(traffic(ledger, "all_to_all").bytes, 0);
}

TEST(Ledger, SequenceParallelGathersAndScatters) {
  const trace::Ledger kept = ledger_of_step(true, true);
  SCOPED_TRACE(kept.json());
  // Forward and backward: one all-gather and one reduce-scatter a half; the embedding scatters, the head gathers.
  EXPECT_EQ(traffic(kept, "all_gather").calls, 2 * (2 * kLayers) + 2);
  EXPECT_EQ(traffic(kept, "reduce_scatter").calls, 2 * (2 * kLayers) + 2);
  EXPECT_EQ(traffic(kept, "all_gather").bytes, traffic(kept, "all_gather").calls * kPass);
  EXPECT_EQ(traffic(kept, "reduce_scatter").bytes, traffic(kept, "reduce_scatter").calls * kPass);
  EXPECT_EQ(traffic(kept, "all_reduce").calls, 0);
}

TEST(Ledger, RegatheringCostsOneMoreForEachHalf) {
  const trace::Ledger again = ledger_of_step(true, false);
  SCOPED_TRACE(again.json());
  EXPECT_EQ(traffic(again, "all_gather").calls, 3 * (2 * kLayers) + 3);
  EXPECT_EQ(traffic(again, "reduce_scatter").calls, 2 * (2 * kLayers) + 2);
}

}  // namespace
}  // namespace tessera
