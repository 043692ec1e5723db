#include "tessera/dtensor/move/joined_moves.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "tessera/comm/call/flight.h"
#include "tessera/dtensor/move/flat_part.h"
#include "tessera/dtensor/move/run_step.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

// A part on its way through the steps of its move.
struct Traveller {
  MovePtr move;
  at::Tensor part;
  size_t done = 0;  // steps

  bool has_arrived() const { return done == move->steps.size(); }
  const CompiledStep& step() const { return move->steps[done]; }
  bool is_joinable() const {
    return !has_arrived() && (step().action == Action::kAllReduce || step().action == Action::kReduceScatter) &&
           bytes() <= kSmallTogether.part;
  }
  bool may_join(const Traveller& first) const {
    const CompiledStep &a = step(), &b = first.step();
    return a.action == b.action && a.mesh == b.mesh && a.axis == b.axis && a.op == b.op &&
           part.scalar_type() == first.part.scalar_type() && part.device() == first.part.device();
  }
  int64_t bytes() const { return static_cast<int64_t>(part.nbytes()); }
};

void run_alone(comm::RankContext& ctx, Traveller& traveller, const char* op) {
  const CompiledStep& step = traveller.step();
  if (step.collective != nullptr) {
    ctx.ledger.record(step.collective, step.axis_name, op, step.bytes);
  }
  traveller.part = finish_step(step, issue_step(ctx, step, traveller.part));
  ++traveller.done;
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.reshape({-1}); }

// What each member of the group gets of all parts, end to end.
std::vector<at::Tensor> sent_by(const std::vector<Traveller*>& together, int64_t members) {
  std::vector<std::vector<at::Tensor>> pieces(static_cast<size_t>(members));
  for (Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    const at::Tensor part = step.taken_apart.empty() ? traveller->part : traveller->part.view(step.taken_apart);
    const std::vector<at::Tensor> own = packed(step.sends, part, members);
    for (size_t member = 0; member < own.size(); ++member) {
      pieces[member].push_back(flat(own[member]));
    }
    traveller->part.reset();
  }
  std::vector<at::Tensor> sent;
  sent.reserve(pieces.size());
  for (auto& each : pieces) {
    sent.push_back(at::cat(each));
    each.clear();
  }
  return sent;
}

void reduce_together(comm::RankContext& ctx, const std::vector<Traveller*>& together, const char* op) {
  const CompiledStep& first = together.front()->step();
  const at::TensorOptions options = together.front()->part.options();
  comm::Communicator& group = first.axis >= 0 ? ctx.axis(first.mesh, first.axis) : ctx.whole(first.mesh);
  int64_t bytes = 0, elements = 0;
  std::vector<std::vector<int64_t>> sizes;
  for (const Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    bytes += step.bytes;
    sizes.push_back(step.action == Action::kAllReduce ? traveller->part.sizes().vec() : step.result_sizes);
    elements += c10::multiply_integers(sizes.back());
  }
  const comm::FlightLayouts layouts(ctx, together.front()->move->from, together.front()->move->to);
  ctx.ledger.record(first.collective, first.axis_name, op, bytes);
  CompiledStep joined;
  joined.action = first.action, joined.op = first.op, joined.parts = first.parts;
  IssuedStep issued;
  if (first.action == Action::kAllReduce) {
    std::vector<at::Tensor> parts;
    for (Traveller* traveller : together) {
      parts.push_back(flat(std::exchange(traveller->part, at::Tensor())));
    }
    issued.result = at::cat(parts);
    issued.work = group.all_reduce(issued.result, wire_op(first.op));
  } else {
    issued.sent = sent_by(together, group.size());
    issued.result = at::empty({elements}, options);
    issued.work = group.reduce_scatter(issued.result, issued.sent, wire_op(first.op));
  }
  const at::Tensor result = finish_step(joined, std::move(issued));
  int64_t begin = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    const CompiledStep& step = together[i]->step();
    at::Tensor part = result.narrow(0, begin, c10::multiply_integers(sizes[i])).view(sizes[i]).clone();
    begin += part.numel();
    together[i]->part = step.put_together.empty() ? std::move(part) : part.reshape(step.put_together);
    ++together[i]->done;
  }
}

}  // namespace

std::vector<at::Tensor> run_moves(comm::RankContext& ctx, const std::vector<MovePtr>& moves,
                                  std::vector<at::Tensor> locals, const char* op) {
  const LocalScope scope;
  const comm::Caller caller(ctx, op);
  std::vector<Traveller> travellers;
  for (size_t i = 0; i < moves.size(); ++i) {
    at::Tensor local = std::move(locals[i]);
    travellers.push_back({moves[i], moves[i]->casts ? local.to(moves[i]->to->dtype) : std::move(local)});
  }
  for (size_t i = 0; i < travellers.size(); ++i) {
    Traveller& own = travellers[i];
    while (!own.has_arrived()) {
      if (!own.is_joinable()) {
        run_alone(ctx, own, op);
        continue;
      }
      std::vector<Traveller*> together = {&own};
      int64_t bytes = own.bytes();
      for (size_t k = i + 1; k < travellers.size(); ++k) {
        Traveller& other = travellers[k];
        if (other.is_joinable() && other.may_join(own) && bytes + other.bytes() <= kSmallTogether.all) {
          together.push_back(&other);
          bytes += other.bytes();
        }
      }
      if (together.size() == 1) {
        run_alone(ctx, own, op);
      } else {
        reduce_together(ctx, together, op);
      }
    }
  }
  std::vector<at::Tensor> results;
  results.reserve(travellers.size());
  for (Traveller& traveller : travellers) {
    results.push_back(std::move(traveller.part));
  }
  return results;
}

}  // namespace tessera::dtensor
