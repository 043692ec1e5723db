#include "tessera/dtensor/move/hand_over.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/layout/vocabulary.h"

namespace tessera::dtensor {

namespace {

at::Tensor nothing_like(const at::Tensor& part) { return at::empty({0}, part.options()); }

bool is_stage(const layout::Placement& place) { return place.is_on() && !layout::is_of_vocabulary(place.stage); }

bool is_part(const layout::Placement& place) { return place.is_on() && layout::is_of_vocabulary(place.stage); }

// The axis is that of the stages, of which the walk runs one, or a part of the vocabulary.
bool is_between_walks(const comm::Walk& walk, const CompiledStep& step) {
  return walk.is_scheduled && walk.stage != comm::Walk::kAllStages && step.axis >= 0 &&
         step.mesh.axis(step.axis).name == walk.axis;
}

bool makes_for_stage(const comm::Walk& walk, const CompiledStep& step) {
  return is_between_walks(walk, step) && layout::is_of_vocabulary(walk.stage) && is_stage(step.to) &&
         !step.from.is_on();
}

class HandOver {
 public:
  HandOver(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local)
      : ctx_(ctx), step_(step), group_(ctx.axis(step.mesh, step.axis)), local_(local) {}

  // In the walk of the stage.
  at::Tensor give_to_all() {
    if (step_.is_at_from && ctx_.walk.runs(ctx_.walk.axis, step_.from)) {
      const int64_t tag = tag_between(ctx_, step_.from.stage, step_.to.stage);
      const at::Tensor part = local_.contiguous();
      for_others([&](int64_t other) { group_.send(part, other, tag)->wait(); });
      ctx_.own_messages.keep(tag, local_);
    }
    return nothing_like(local_);
  }
  at::Tensor take_from_part() {
    if (!step_.is_at_to || !ctx_.walk.runs(ctx_.walk.axis, step_.to)) {
      return nothing_like(local_);
    }
    const int64_t tag = tag_between(ctx_, step_.from.stage, step_.to.stage);
    at::Tensor sum = taken_from_own(ctx_, step_, tag);
    if (step_.from.stage == layout::kLookup) {
      for_others([&](int64_t other) { sum = at::add(sum, received(other, tag)); });
    }
    return sum;
  }

  // In the walk of the part.
  at::Tensor take_from_stage() {
    TESSERA_CHECK(step_.action == Action::kBroadcast, "[job] what is on a stage, ", step_.from.str(),
                  ", is read in parts on all of them, inside of a schedule that cuts the vocabulary (rank ", ctx_.rank,
                  "); accepted: what reads it whole, or a step without a schedule");
    const int64_t tag = tag_between(ctx_, step_.from.stage, ctx_.walk.stage);
    return step_.gives_part ? taken_from_own(ctx_, step_, tag) : received(step_.from.coordinate(), tag);
  }
  at::Tensor give_rows() {
    const int64_t tag = tag_between(ctx_, ctx_.walk.stage, step_.to.stage);
    if (step_.is_at_to) {
      ctx_.own_messages.keep(tag, local_);
    } else {
      group_.send(local_.contiguous(), step_.to.coordinate(), tag)->wait();
    }
    return nothing_like(local_);
  }

 private:
  template <typename Do>
  void for_others(Do do_it) const {
    for (int64_t other = 0; other < group_.size(); ++other) {
      if (other != group_.rank()) {
        do_it(other);
      }
    }
  }
  at::Tensor received(int64_t from, int64_t tag) const {
    at::Tensor part = at::empty(step_.result_sizes, local_.options());
    group_.receive(part, from, tag)->wait();
    return part;
  }

  comm::RankContext& ctx_;
  const CompiledStep& step_;
  comm::Communicator& group_;
  const at::Tensor& local_;
};

}  // namespace

int64_t tag_between(const comm::RankContext& ctx, int64_t from_stage, int64_t to_stage) {
  return (ctx.broken_schedules << 48) + (ctx.walk.micro_batch << 28) + (from_stage << 14) + to_stage;
}

at::Tensor taken_from_own(comm::RankContext& ctx, const CompiledStep& step, int64_t tag) {
  at::Tensor part = ctx.own_messages.take(tag);
  TESSERA_CHECK(part.sizes() == c10::IntArrayRef(step.result_sizes), "[", ctx.current_op, "] a pass of rank ", ctx.rank,
                " takes a value of sizes ", c10::IntArrayRef(step.result_sizes), " from another of its stages, ",
                step.from.str(), " to ", step.to.str(), ", which left one of ", part.sizes(), " (stage ",
                ctx.walk.stage, ", micro-batch ", ctx.walk.micro_batch,
                "): the passes run different programs. Look for what depends on the rank.");
  return part;
}

std::optional<at::Tensor> try_hand_over(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local) {
  if (!is_between_walks(ctx.walk, step)) {
    return std::nullopt;
  }
  if (!layout::is_of_vocabulary(ctx.walk.stage)) {
    const bool gives = is_stage(step.from) && is_part(step.to), takes = is_part(step.from) && is_stage(step.to);
    return gives   ? std::optional(HandOver(ctx, step, local).give_to_all())
           : takes ? std::optional(HandOver(ctx, step, local).take_from_part())
                   : std::nullopt;
  }
  if (is_stage(step.from) && !step.to.is_on()) {
    return HandOver(ctx, step, local).take_from_stage();
  }
  const bool is_of_lookup = makes_for_stage(ctx.walk, step) && ctx.walk.stage == layout::kLookup;
  return is_of_lookup && step.from.is_partial() ? std::optional(HandOver(ctx, step, local).give_rows()) : std::nullopt;
}

at::Tensor left_for_stage(comm::RankContext& ctx, const CompiledStep& step, at::Tensor result) {
  if (!makes_for_stage(ctx.walk, step)) {
    return result;
  }
  if (step.is_at_to) {
    ctx.own_messages.keep(tag_between(ctx, ctx.walk.stage, step.to.stage), result);
  }
  return nothing_like(result);
}

}  // namespace tessera::dtensor
