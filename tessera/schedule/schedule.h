// What every rank of a pipeline does in a step, in order.
//
// A schedule is data: generators make it, passes add to it, `verify` says whether it can run, `replay` how long it
// takes, an executor runs it. Nothing here knows a tensor or a communicator.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/schedule/action.h"

namespace tessera::schedule {

// A value. Who runs one walks `ranks[rank]` from front to back.
//
// Stages are numbered along the program. A rank may hold several: in a loop (rank r has r, r + p, ...) or in a V (rank
// r has r and 2p - 1 - r). DualPipe holds every stage twice: then there are two chains of stages one behind the other,
// each with its own first and last, and each takes its share of the micro-batches, the first chain the first ones.
struct Schedule {
  std::vector<std::vector<Action>> ranks = {};
  std::vector<int64_t> rank_of_stage = {};
  int64_t micro_batches = 0;
  int64_t chains = 1;
  // Barriers between the last stage's forward and its backward where embedding and head are cut over the ranks (1 or
  // 2, `vocabulary.h`); 0: the first and the last stage have them.
  int64_t barriers = 0;

  int64_t num_ranks() const { return static_cast<int64_t>(ranks.size()); }
  int64_t num_stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
  int64_t chain_length() const { return num_stages() / chains; }

  // Whether the stage begins or ends its chain.
  bool is_first(int64_t stage) const { return stage % chain_length() == 0; }
  bool is_last(int64_t stage) const { return (stage + 1) % chain_length() == 0; }

  // Whether the micro-batch goes through the stage.
  bool takes(int64_t stage, int64_t micro_batch) const {
    return micro_batch / (micro_batches / chains) == stage / chain_length();
  }

  // Whether the stage's output goes to another rank, or the gradient of its input does.
  bool sends_forward(int64_t stage) const { return !is_last(stage) && !are_together(stage, stage + 1); }
  bool sends_backward(int64_t stage) const { return !is_first(stage) && !are_together(stage, stage - 1); }

  // Whether two stages lie on one rank.
  bool are_together(int64_t a, int64_t b) const {
    return rank_of_stage[static_cast<size_t>(a)] == rank_of_stage[static_cast<size_t>(b)];
  }

  // The stages of a rank, in ascending order.
  std::vector<int64_t> stages_of(int64_t rank) const;

  // Whether it has actions of this kind; whether it has sends or receives.
  bool has(ActionKind kind) const;
  bool has_communication() const;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// rank_of_stage of stages in a loop or in a V, `per_rank` on each.
std::vector<int64_t> loop_of_stages(int64_t ranks, int64_t per_rank);
std::vector<int64_t> v_of_stages(int64_t ranks);

// A row for each rank, its actions with commas between them, as torch.distributed.pipelining's `_load_csv` reads it and
// its `_dump_csv` writes it.
std::string to_csv(const Schedule& schedule);
std::ostream& operator<<(std::ostream& out, const Schedule& schedule);

// The same with a wait for each send and each reduction, which PyTorch asks for from 2.15 on: 1WAIT_SEND_F3 behind the
// backward that says that the output has come, of other sends at the row's end, 0WAIT_REDUCE_GRAD at once. Here sends
// do not wait and a reduction ends before the next action, so a schedule has no waits.
std::string to_csv_with_waits(const Schedule& schedule);

// The schedule of such rows. Stages are on the rank that runs them, micro-batches are those of the actions; one chain.
// Empty cells (a rank waits) and the waits of to_csv_with_waits are skipped; `(1F3;6B2)OVERLAP_F_B` is read as 1F3,
// then 6B2. HEAD_B and HEAD_F in one schedule mean barriers as `barriers` says, 1 if not given. Throws PlanError with
// row and cell of what is no action. What it gives need not be able to run: that is `verify`'s to say.
Schedule parse_csv(std::string_view text, int64_t barriers = 1);

}  // namespace tessera::schedule
