// Models whose blocks are recomputed or offloaded: a GPT that draws, a Llama in a loop that the program runs itself and
// what its blocks take of memory.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/parallel/forward_pass.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/counting_allocator.h"

namespace tessera::ranks {

inline models::GptConfig tied_gpt_with_dropout() {
  models::GptConfig config;
  config.vocab_size = 67, config.dim = 24, config.layers = 3, config.heads = 4, config.max_seq = 16;
  config.dropout = 0.2, config.tie_embeddings = true;
  return config;
}

// Placed as a plan of these options says. One a rank.
struct LlamaLoop {
  LlamaLoop(const models::LlamaConfig& config, const plan::PlanOptions& options)
      : model(parallel::deferred([&] { return models::Llama(config); })),
        plan(parallel::generate_plan(*model, options)),
        passes((parallel::place(*model, plan), plan)) {}

  at::Tensor forward(int64_t batch, int64_t length) {
    const at::Tensor tokens = tokens_of({.batch = batch, .length = length, .vocabulary = 67}, 0);
    const auto given = passes.begin({{"tokens", tokens.slice(1, 0, length).contiguous()},
                                     {"targets", tokens.slice(1, 1, length + 1).contiguous()}});
    at::Tensor loss = model->loss(given[0], given[1]);
    passes.end();
    return loss;
  }

  models::Llama model;
  plan::Plan plan;
  parallel::ForwardPasses passes;
};

// Bytes of rank 0 above what is there between steps.
struct PassBytes {
  double held = 0;  // for backward
  double peak = 0;  // with backward
};

// What one more block of a Llama of `config_of(layers)` adds to those of a pass. Collective over the options' mesh,
// whose ranks are made here.
inline PassBytes added_by_block(const std::function<models::LlamaConfig(int64_t layers)>& config_of,
                                const plan::PlanOptions& options, int64_t batch, int64_t length) {
  constexpr int64_t kFew = 2, kMany = 4;
  const auto bytes = [&](int64_t layers) {
    PassBytes found;
    run_on(*options.mesh, [&](int64_t rank) {
      LlamaLoop loop(config_of(layers), options);
      loop.forward(batch, length).backward();  // gradients are there from now on
      const int64_t before = support::bytes_of(rank).live;
      support::reset_peak(rank);
      const at::Tensor loss = loop.forward(batch, length);
      const int64_t held = support::bytes_of(rank).live - before;
      loss.backward();
      if (rank == 0) {
        found = {static_cast<double>(held), static_cast<double>(support::bytes_of(rank).peak - before)};
      }
    });
    return found;
  };
  const PassBytes few = bytes(kFew), many = bytes(kMany);
  constexpr double kBlocks = kMany - kFew;
  return {(many.held - few.held) / kBlocks, (many.peak - few.peak) / kBlocks};
}

}  // namespace tessera::ranks
