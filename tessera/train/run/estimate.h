// What a training step of a configuration takes and sends on each rank, found without the ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/trace/ledger.h"
#include "tessera/train/run/config.h"

namespace tessera::train {

// Of one rank; memory in bytes of tensors.
struct RankEstimate {
  int64_t rank = 0;
  // Its parts, between the steps. Gradients are there from backward to the end of the update.
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  // The most of a step, from its batch to its last gradient, and in clipping and update; all that lives counts.
  int64_t pass_peak = 0, update_peak = 0;
  // The most from construction to the end of the first step, in which the optimizer makes its state.
  int64_t start_peak = 0;
  // What it sends in a step.
  std::vector<trace::LedgerEntry> sent = {};

  int64_t peak() const;         // in all
  int64_t activations() const;  // of a step's peak, what is neither parameter nor optimizer state
  int64_t bytes_sent() const;
  int64_t messages() const;  // calls of collectives
};

// The ranks that were looked at, in their order.
struct Estimate {
  std::string model = {}, dtype = {}, numerics = {}, mesh = {};
  int64_t ranks_of_job = 1;
  int64_t model_parameters = 0;
  int64_t tokens = 0;  // of a step
  std::vector<RankEstimate> ranks = {};
  std::vector<std::string> notes = {};

  // The one whose peak is largest.
  const RankEstimate& largest() const;

  // `memory`: of a rank; says whether the largest fits.
  std::string text(std::optional<int64_t> memory = {}) const;
  std::string json(std::optional<int64_t> memory = {}) const;
};

// Runs the first two steps of the configuration on one rank after another of an imagined job (watch::Imagined): on
// `ranks`, or without any on those whose coordinates are first or last on each axis, at most 16. Bytes and messages are
// those of the second step. No data is read. Throws ConfigError if there is no such rank, and what placing the model
// throws.
Estimate estimate(const Config& config, std::vector<int64_t> ranks = {});

}  // namespace tessera::train
