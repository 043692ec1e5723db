#include "tessera/schedule/results.h"

namespace tessera::schedule {
namespace {

void add_of_all_ranks(const Schedule& schedule, ResultKind kind, int64_t micro_batch, Results& needs) {
  for (int64_t rank = 0; rank < schedule.num_ranks(); ++rank) {
    needs.push_back({kind, rank, micro_batch});
  }
}

void add_of_forward(const Schedule& schedule, const Action& action, Results& needs) {
  if (!schedule.is_first(action.stage)) {
    needs.push_back({ResultKind::kOutput, action.stage - 1, action.micro_batch});
  } else if (schedule.barriers > 0) {
    add_of_all_ranks(schedule, ResultKind::kEmbedded, action.micro_batch, needs);
  }
}

void add_of_backward(const Schedule& schedule, const Action& action, Results& needs) {
  needs.push_back({ResultKind::kOutput, action.stage, action.micro_batch});
  if (!schedule.is_last(action.stage)) {
    needs.push_back({ResultKind::kInputGradient, action.stage + 1, action.micro_batch});
  } else if (schedule.barriers > 0) {
    const auto kind = schedule.barriers == 1 ? ResultKind::kHead : ResultKind::kHeadGradient;
    add_of_all_ranks(schedule, kind, action.micro_batch, needs);
  }
}

void add_of_reduce(const Schedule& schedule, int64_t stage, Results& needs) {
  for (int64_t micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
    if (schedule.takes(stage, micro_batch)) {
      needs.push_back({ResultKind::kWeightGradient, stage, micro_batch});
    }
  }
}

}  // namespace

Results results_of(const Action& action) {
  const auto one = [&](ResultKind kind) { return Results{{kind, action.stage, action.micro_batch}}; };
  switch (action.kind) {
    case ActionKind::kForward: return one(ResultKind::kOutput);
    case ActionKind::kInput: return one(ResultKind::kInputGradient);
    case ActionKind::kWeight: return one(ResultKind::kWeightGradient);
    case ActionKind::kRecompute: return one(ResultKind::kRecomputed);
    case ActionKind::kHead: return one(ResultKind::kHead);
    case ActionKind::kHeadBackward: return one(ResultKind::kHeadGradient);
    case ActionKind::kEmbed: return one(ResultKind::kEmbedded);
    case ActionKind::kEmbedBackward: return one(ResultKind::kEmbedGradient);
    case ActionKind::kBackward:
      return {{ResultKind::kInputGradient, action.stage, action.micro_batch},
              {ResultKind::kWeightGradient, action.stage, action.micro_batch}};
    default: return {};
  }
}

Results needs_of(const Schedule& schedule, const Action& action) {
  const auto stage = action.stage, micro_batch = action.micro_batch;
  Results needs;
  switch (action.kind) {
    case ActionKind::kForward: add_of_forward(schedule, action, needs); break;
    case ActionKind::kBackward:
    case ActionKind::kInput: add_of_backward(schedule, action, needs); break;
    case ActionKind::kWeight:
    case ActionKind::kSendBackward: needs.push_back({ResultKind::kInputGradient, stage, micro_batch}); break;
    case ActionKind::kRecompute:
    case ActionKind::kSendForward: needs.push_back({ResultKind::kOutput, stage, micro_batch}); break;
    case ActionKind::kReceiveForward: needs.push_back({ResultKind::kOutput, stage - 1, micro_batch}); break;
    case ActionKind::kReceiveBackward: needs.push_back({ResultKind::kInputGradient, stage + 1, micro_batch}); break;
    case ActionKind::kReduce: add_of_reduce(schedule, stage, needs); break;
    case ActionKind::kHead: needs.push_back({ResultKind::kOutput, schedule.chain_length() - 1, micro_batch}); break;
    case ActionKind::kHeadBackward: add_of_all_ranks(schedule, ResultKind::kHead, micro_batch, needs); break;
    case ActionKind::kEmbedBackward: needs.push_back({ResultKind::kInputGradient, 0, micro_batch}); break;
    case ActionKind::kEmbed:
    case ActionKind::kGather:
    case ActionKind::kFree: break;
  }
  return needs;
}

Results met_by(const Schedule& schedule, const Action& action) {
  Results met;
  if (action.kind == ActionKind::kHead) {
    add_of_all_ranks(schedule, ResultKind::kHead, action.micro_batch, met);
  } else if (action.kind == ActionKind::kHeadBackward && schedule.barriers == 2) {
    add_of_all_ranks(schedule, ResultKind::kHeadGradient, action.micro_batch, met);
  }
  return met;
}

int64_t maker_of(const Schedule& schedule, const Result& result) {
  return result.kind >= ResultKind::kHead ? result.stage : schedule.rank_of_stage[static_cast<size_t>(result.stage)];
}

}  // namespace tessera::schedule
