#include "tessera/train/run/estimate.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/train/run/placed_run.h"
#include "tessera/train/run/setup.h"
#include "tessera/watch/imagined.h"

namespace tessera::train {
namespace {

constexpr size_t kMostRanks = 16;

std::vector<at::Tensor> gradients_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

// Tokens and targets as a sampler makes them.
std::vector<at::Tensor> some_rows(int64_t count, int64_t length) {
  const auto one = [&] { return at::Tensor(at::detail::empty_cpu({count, length}, at::kLong)); };
  return {one(), one()};
}

// The calling thread is the rank.
RankEstimate estimate_rank(const Config& config, int64_t rank, Estimate& all) {
  RankEstimate result{.rank = rank};
  watch::Imagined imagined;
  PlacedRun run(config);
  all.mesh = run.plan().mesh.str();
  all.model_parameters = models::parameter_count(run.model());
  const auto read = [&](int64_t begin, int64_t end) { return some_rows(end - begin, config.data.sequence); };
  run.step(0, read);
  result.start_peak = imagined.peak();
  imagined.reset_peak();
  auto& ledger = comm::RankContext::require().ledger;
  ledger.clear();
  run.step(1, read, [&] {
    result.pass_peak = imagined.peak();
    imagined.reset_peak();
    result.gradients = watch::bytes_of_parts(gradients_of(run.model()));
  });
  result.update_peak = imagined.peak();
  result.sent = ledger.entries();
  result.parameters = watch::bytes_of_parts(run.model().parameters());
  result.optimizer = watch::bytes_of_parts(parallel::state_of(run.optimizer()));
  return result;
}

// Those whose coordinates are first or last on each axis.
std::vector<int64_t> corners_of(const layout::Mesh& mesh) {
  std::vector<layout::Coord> corners = {{}};
  for (const layout::Axis& axis : mesh.axes()) {
    std::vector<layout::Coord> longer;
    for (const layout::Coord& corner : corners) {
      for (const int64_t at : axis.size > 1 ? std::vector<int64_t>{0, axis.size - 1} : std::vector<int64_t>{0}) {
        longer.push_back(corner);
        longer.back().push_back(at);
      }
    }
    corners = std::move(longer);
  }
  std::vector<int64_t> ranks;
  for (const layout::Coord& corner : corners) {
    ranks.push_back(mesh.rank_at(corner));
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.resize(std::min(ranks.size(), kMostRanks));
  return ranks;
}

// The mesh that the configuration names, or that is chosen for its ranks.
layout::Mesh mesh_of(const Config& config) {
  layout::Mesh mesh;
  comm::run_fake(config.ranks(), 0, [&] {
    const auto model = parallel::deferred([&] { return make_model(config); });
    mesh = make_plan(config, *model).mesh;
  });
  return mesh;
}

}  // namespace

int64_t RankEstimate::peak() const { return std::max({pass_peak, update_peak, start_peak}); }

int64_t RankEstimate::activations() const { return std::max<int64_t>(0, pass_peak - parameters - optimizer); }

int64_t RankEstimate::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& entry : sent) {
    bytes += entry.bytes;
  }
  return bytes;
}

int64_t RankEstimate::messages() const {
  int64_t calls = 0;
  for (const auto& entry : sent) {
    calls += entry.calls;
  }
  return calls;
}

const RankEstimate& Estimate::largest() const {
  return *std::max_element(ranks.begin(), ranks.end(),
                           [](const auto& a, const auto& b) { return a.peak() < b.peak(); });
}

Estimate estimate(const Config& given, std::vector<int64_t> ranks) {
  verify_run(given);
  const auto config = with_vocabulary(given);
  const int64_t count = config.ranks();
  if (ranks.empty()) {
    ranks = corners_of(mesh_of(config));
  }
  for (const int64_t rank : ranks) {
    TESSERA_CHECK_AS(ConfigError, rank >= 0 && rank < count, "[estimate] rank ", rank, " of ", count,
                     " ranks; accepted: ranks 0 to ", count - 1);
  }
  Estimate result{.model = config.model.kind,
                  .dtype = config.train.dtype,
                  .numerics = config.train.numerics,
                  .ranks_of_job = count,
                  .tokens = config.train.batch * config.data.sequence};
  if (!config.offload.state.empty()) {
    result.notes.push_back("offload.state is left out of account: the optimizer's state counts as memory");
  }
  for (const int64_t rank : ranks) {
    comm::run_fake(count, rank, [&] { result.ranks.push_back(estimate_rank(config, rank, result)); });
  }
  return result;
}

}  // namespace tessera::train
