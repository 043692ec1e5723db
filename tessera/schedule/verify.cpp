#include "tessera/schedule/verify.h"

#include <algorithm>
#include <deque>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/results.h"

namespace tessera::schedule {
namespace {

// Of an error: `[schedule] rank 1, action 5 (2F0)`.
std::string place_text(const Schedule& schedule, int64_t rank, int64_t position) {
  std::ostringstream out;
  out << "[schedule] rank " << rank << ", action " << position << " ("
      << schedule.ranks[static_cast<size_t>(rank)][static_cast<size_t>(position)] << ")";
  return out.str();
}

#define TESSERA_VERIFY(cond, rank, position, ...) \
  TESSERA_CHECK_AS(PlanError, cond, place_text(schedule_, rank, position), ": ", __VA_ARGS__)

// How often each action stands in the schedule, and whether it may.
class Counts {
 public:
  explicit Counts(const Schedule& schedule)
      : schedule_(schedule),
        rows_(std::max(schedule.num_stages(), schedule.num_ranks())),
        columns_(schedule.micro_batches + 1),  // the last one: of a stage
        counts_(static_cast<size_t>(kActionKinds * rows_ * columns_), 0) {}

  // All but order and messages.
  void verify() {
    for (int64_t rank = 0; rank < schedule_.num_ranks(); ++rank) {
      const auto& actions = schedule_.ranks[static_cast<size_t>(rank)];
      for (size_t i = 0; i < actions.size(); ++i) {
        const auto position = static_cast<int64_t>(i);
        verify_place(rank, position, actions[i]);
        TESSERA_VERIFY(++at(actions[i]) == 1 || is_repeated(actions[i].kind), rank, position,
                       "it stands in the schedule already; accepted: once");
      }
    }
    has_reduce_ = schedule_.has(ActionKind::kReduce);
    has_communication_ = schedule_.has_communication();
    for (int64_t stage = 0; stage < schedule_.num_stages(); ++stage) {
      for (int64_t k = 0; k < schedule_.micro_batches; ++k) {
        if (schedule_.takes(stage, k)) {
          verify_passes(stage, k);
        }
      }
      verify_count({ActionKind::kReduce, stage}, has_reduce_);
    }
    for (int64_t rank = 0; schedule_.barriers > 0 && rank < schedule_.num_ranks(); ++rank) {
      for (int64_t k = 0; k < schedule_.micro_batches; ++k) {
        for (const auto kind :
             {ActionKind::kHead, ActionKind::kHeadBackward, ActionKind::kEmbed, ActionKind::kEmbedBackward}) {
          verify_count({kind, rank, k}, true);
        }
      }
    }
  }

 private:
  static bool is_repeated(ActionKind kind) { return kind == ActionKind::kGather || kind == ActionKind::kFree; }

  int64_t& at(const Action& action) {
    const auto column = has_micro_batch(action.kind) ? action.micro_batch : columns_ - 1;
    return counts_[static_cast<size_t>((static_cast<int64_t>(action.kind) * rows_ + action.stage) * columns_ + column)];
  }

  // That the action is of this schedule and of this rank, and a message of two ranks.
  void verify_place(int64_t rank, int64_t position, const Action& action) const {
    const bool is_part = is_of_vocabulary(action.kind);
    const auto stages = is_part ? schedule_.num_ranks() : schedule_.num_stages();
    TESSERA_VERIFY(action.stage >= 0 && action.stage < stages, rank, position, "there is no such ",
                   is_part ? "part" : "stage", "; accepted: 0 to ", stages - 1);
    if (has_micro_batch(action.kind)) {
      TESSERA_VERIFY(action.micro_batch >= 0 && action.micro_batch < schedule_.micro_batches, rank, position,
                     "there is no such micro-batch; accepted: 0 to ", schedule_.micro_batches - 1);
      TESSERA_VERIFY(is_part || schedule_.takes(action.stage, action.micro_batch), rank, position, "micro-batch ",
                     action.micro_batch, " goes through the other chain of stages");
    }
    TESSERA_VERIFY(!is_part || schedule_.barriers > 0, rank, position,
                   "embedding and head are not cut in this schedule; accepted: barriers 1 or 2");
    const auto owner = is_part ? action.stage : schedule_.rank_of_stage[static_cast<size_t>(action.stage)];
    TESSERA_VERIFY(owner == rank, rank, position, is_part ? "part " : "stage ", action.stage, " is on rank ", owner);
    TESSERA_VERIFY(is_message(action), rank, position, "no other rank has a stage there to exchange this with");
  }

  // Of sends and receives, whether it is from one rank to another; true of all else.
  bool is_message(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kSendForward: return schedule_.sends_forward(action.stage);
      case ActionKind::kReceiveForward: return schedule_.sends_backward(action.stage);  // the same two stages
      case ActionKind::kSendBackward: return schedule_.sends_backward(action.stage);
      case ActionKind::kReceiveBackward: return schedule_.sends_forward(action.stage);
      default: return true;
    }
  }

  void verify_count(const Action& action, bool is_wanted) {
    TESSERA_CHECK_AS(
        PlanError, at(action) == (is_wanted ? 1 : 0), "[schedule] ", action, " stands ", at(action), " times on rank ",
        is_of_vocabulary(action.kind) ? action.stage : schedule_.rank_of_stage[static_cast<size_t>(action.stage)],
        "; accepted: once");
  }

  void verify_passes(int64_t stage, int64_t k) {
    verify_count({ActionKind::kForward, stage, k}, true);
    const auto full = at({ActionKind::kBackward, stage, k});
    const auto input = at({ActionKind::kInput, stage, k}), weight = at({ActionKind::kWeight, stage, k});
    const auto rank = schedule_.rank_of_stage[static_cast<size_t>(stage)];
    TESSERA_CHECK_AS(PlanError, full + input == 1, "[schedule] rank ", rank, " makes the input gradient of stage ",
                     stage, ", micro-batch ", k, " ", full + input, " times; accepted: once, by ", stage, "B", k,
                     " or ", stage, "I", k);
    TESSERA_CHECK_AS(PlanError, full + weight == 1, "[schedule] rank ", rank, " makes the weight gradient of stage ",
                     stage, ", micro-batch ", k, " ", full + weight, " times; accepted: once, by ", stage, "B", k,
                     " or ", stage, "W", k);
    if (has_communication_) {
      if (schedule_.sends_forward(stage)) {
        verify_count({ActionKind::kSendForward, stage, k}, true);
        verify_count({ActionKind::kReceiveBackward, stage, k}, true);
      }
      if (schedule_.sends_backward(stage)) {
        verify_count({ActionKind::kSendBackward, stage, k}, true);
        verify_count({ActionKind::kReceiveForward, stage, k}, true);
      }
    }
  }

  const Schedule& schedule_;
  bool has_reduce_ = false, has_communication_ = false;
  int64_t rows_, columns_;
  std::vector<int64_t> counts_;
};

// Walks every rank's actions as far as they go.
class Walk {
 public:
  Walk(const Schedule& schedule, int64_t buffers)
      : schedule_(schedule),
        buffers_(buffers),
        has_communication_(schedule.has_communication()),
        has_gathers_(schedule.has(ActionKind::kGather)),
        done_(schedule, 0),
        received_(schedule, 0),
        arrived_(schedule, 0),
        positions_(schedule.ranks.size(), 0),
        gathered_(schedule.rank_of_stage.size(), 0),
        queues_(schedule.ranks.size() * schedule.ranks.size()) {}

  void verify() {
    for (bool moves = true; moves;) {
      moves = false;
      for (int64_t rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (!is_at_end(rank) && try_step(rank)) {
          ++positions_[static_cast<size_t>(rank)];
          moves = true;
        }
      }
    }
    verify_end();
  }

 private:
  bool is_at_end(int64_t rank) const {
    return positions_[static_cast<size_t>(rank)] ==
           static_cast<int64_t>(schedule_.ranks[static_cast<size_t>(rank)].size());
  }
  int64_t position(int64_t rank) const { return positions_[static_cast<size_t>(rank)]; }
  const Action& action(int64_t rank) const {
    return schedule_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(position(rank))];
  }

  // Does the rank's next action, or nothing if it waits for another rank. Throws if no other rank can help.
  bool try_step(int64_t rank) {
    const Action& next = action(rank);
    if (is_send(next.kind) || is_receive(next.kind)) {
      return is_send(next.kind) ? try_send(rank, next) : try_receive(rank, next);
    }
    bool can_begin = true;
    for (const Result& need : needs_of(schedule_, next)) {
      can_begin = is_there(rank, next, need) && can_begin;
    }
    if (!can_begin || !have_met(next)) {
      return false;
    }
    verify_gathered(rank, next);
    for (const Result& result : results_of(next)) {
      if (result.kind == ResultKind::kRecomputed) {
        const Result gradient{ResultKind::kInputGradient, result.stage, result.micro_batch};
        TESSERA_VERIFY(!done_[gradient], rank, position(rank), "its backward came before it");
      }
      done_[result] = 1;
    }
    return true;
  }

  // Whether all ranks are in this pass, if they meet in it, now that this one is.
  bool have_met(const Action& next) {
    for (const Result& result : results_of(next)) {
      arrived_[result] = 1;
    }
    const auto met = met_by(schedule_, next);
    return std::all_of(met.begin(), met.end(), [this](const Result& result) { return arrived_[result] != 0; });
  }

  // Whether a pass may read it; throws if it should have come before and did not.
  bool is_there(int64_t rank, const Action& next, const Result& need) {
    const auto maker = maker_of(schedule_, need);
    if (maker == rank) {
      TESSERA_VERIFY(done_[need], rank, position(rank), "it needs ", text_of(need), ", which this rank makes later");
      return true;
    }
    const bool is_collective = need.kind >= ResultKind::kHead || is_of_vocabulary(next.kind);
    if (!has_communication_ || is_collective) {
      return done_[need] != 0;
    }
    TESSERA_VERIFY(received_[need], rank, position(rank), "it needs ", text_of(need),
                   ", which this rank has not received yet");
    return true;
  }

  bool try_send(int64_t rank, const Action& next) {
    const Result sent = needs_of(schedule_, next)[0];
    TESSERA_VERIFY(done_[sent], rank, position(rank), "it sends ", text_of(sent), ", which is made later");
    auto& queue = queue_of(rank, peer_of(next));
    if (static_cast<int64_t>(queue.size()) >= buffers_) {
      return false;
    }
    queue.push_back(sent);
    return true;
  }

  bool try_receive(int64_t rank, const Action& next) {
    const Result wanted = needs_of(schedule_, next)[0];
    const auto from = maker_of(schedule_, wanted);
    auto& queue = queue_of(from, rank);
    if (queue.empty()) {
      return false;
    }
    TESSERA_VERIFY(queue.front() == wanted, rank, position(rank), "rank ", from, " sent ", text_of(queue.front()),
                   " before it; accepted: receives from one rank in the order in which it sends");
    queue.pop_front();
    received_[wanted] = 1;
    return true;
  }

  void verify_gathered(int64_t rank, const Action& next) {
    if (is_of_vocabulary(next.kind)) {
      return;
    }
    auto& is_gathered = gathered_[static_cast<size_t>(next.stage)];
    if (next.kind == ActionKind::kGather || next.kind == ActionKind::kFree) {
      TESSERA_VERIFY((is_gathered != 0) == (next.kind == ActionKind::kFree), rank, position(rank), "the stage is ",
                     is_gathered ? "gathered already" : "not gathered");
      is_gathered = next.kind == ActionKind::kGather;
    } else if (has_gathers_ && is_compute(next.kind)) {
      TESSERA_VERIFY(is_gathered, rank, position(rank), "the stage is not gathered; accepted: ", next.stage,
                     "UNSHARD before it");
    }
  }

  void verify_end() const {
    std::vector<int64_t> waiting;
    for (int64_t rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (!is_at_end(rank)) {
        waiting.push_back(rank);
      }
    }
    TESSERA_CHECK_AS(PlanError, waiting.empty(), "[schedule] no rank goes on with ", buffers_,
                     " buffers: ", base::join(waiting, ", ", [this](std::ostream& out, int64_t rank) {
                       out << "rank " << rank << " waits at action " << position(rank) << " (" << action(rank) << ")";
                     }));
    for (size_t stage = 0; stage < gathered_.size(); ++stage) {
      TESSERA_CHECK_AS(PlanError, !gathered_[stage], "[schedule] rank ", schedule_.rank_of_stage[stage],
                       " ends with stage ", stage, " gathered; accepted: ", stage, "RESHARD after its last pass");
    }
  }

  int64_t peer_of(const Action& send) const {
    const auto to = send.kind == ActionKind::kSendForward ? send.stage + 1 : send.stage - 1;
    return schedule_.rank_of_stage[static_cast<size_t>(to)];
  }
  std::deque<Result>& queue_of(int64_t from, int64_t to) {
    return queues_[static_cast<size_t>(from * schedule_.num_ranks() + to)];
  }

  static std::string text_of(const Result& result) {
    static constexpr const char* kWhats[] = {
        "the output", "the input gradient",  "the weight gradient", "the recomputed",
        "the head",   "the head's gradient", "the embedded",        "the embedding's gradient"};
    return c10::str(kWhats[static_cast<size_t>(result.kind)], " of stage ", result.stage, ", micro-batch ",
                    result.micro_batch);
  }

  const Schedule& schedule_;
  const int64_t buffers_;
  const bool has_communication_, has_gathers_;
  ResultTable<char> done_, received_, arrived_;
  std::vector<int64_t> positions_;
  std::vector<char> gathered_;  // of each stage
  std::vector<std::deque<Result>> queues_;
};

void verify_sizes(const Schedule& schedule) {
  TESSERA_CHECK_AS(PlanError,
                   schedule.num_ranks() > 0 && schedule.num_stages() > 0 && schedule.micro_batches > 0 &&
                       schedule.chains > 0 && schedule.num_stages() % schedule.chains == 0 &&
                       schedule.micro_batches % schedule.chains == 0 && schedule.barriers >= 0 &&
                       schedule.barriers <= 2 && (schedule.barriers == 0 || schedule.chains == 1),
                   "[schedule] ", schedule.num_ranks(), " ranks, ", schedule.num_stages(), " stages in ",
                   schedule.chains, " chains, ", schedule.micro_batches, " micro-batches, ", schedule.barriers,
                   " barriers; accepted: at least one of each, chains that divide stages and micro-batches, 0 to 2 "
                   "barriers in one chain");
  for (int64_t stage = 0; stage < schedule.num_stages(); ++stage) {
    const auto rank = schedule.rank_of_stage[static_cast<size_t>(stage)];
    TESSERA_CHECK_AS(PlanError, rank >= 0 && rank < schedule.num_ranks(), "[schedule] stage ", stage, " on rank ", rank,
                     " of ", schedule.num_ranks());
  }
}

}  // namespace

void verify_schedule(const Schedule& schedule, const VerifyOptions& options) {
  TESSERA_CHECK_AS(PlanError, options.buffers > 0, "[schedule] ", options.buffers, " buffers; accepted: at least 1");
  verify_sizes(schedule);
  Counts(schedule).verify();
  Walk(schedule, options.buffers).verify();
  if (options.peak) {
    const auto peaks = peaks_of(schedule);
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      TESSERA_CHECK_AS(PlanError, peaks[rank] <= *options.peak, "[schedule] rank ", rank, " holds ", peaks[rank],
                       " micro-batches at once; accepted: at most ", *options.peak);
    }
  }
}

}  // namespace tessera::schedule
