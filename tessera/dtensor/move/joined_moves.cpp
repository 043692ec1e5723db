#include "tessera/dtensor/move/joined_moves.h"

#include <utility>

#include <ATen/ops/cat.h>

#include "tessera/comm/call/flight.h"
#include "tessera/dtensor/move/join_limits.h"
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
  traveller.part = run_step(ctx, traveller.step(), traveller.part, op);
  ++traveller.done;
}

// What each member of the group gets of each part; one member, if all get all.
std::vector<std::vector<at::Tensor>> by_member(const std::vector<Traveller*>& together) {
  std::vector<std::vector<at::Tensor>> pieces;
  for (const Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    const at::Tensor part = step.taken_apart.empty() ? traveller->part : traveller->part.view(step.taken_apart);
    const std::vector<at::Tensor> own =
        step.action == Action::kAllReduce ? std::vector<at::Tensor>{part} : packed(step.sends, part, step.parts);
    pieces.resize(own.size());
    for (size_t member = 0; member < own.size(); ++member) {
      pieces[member].push_back(own[member].reshape({-1}));
    }
  }
  return pieces;
}

void reduce_together(comm::RankContext& ctx, const std::vector<Traveller*>& together, const char* op) {
  CompiledStep joined = together.front()->step();
  joined.taken_apart.clear(), joined.put_together.clear();
  joined.bytes = 0;
  int64_t elements = 0;
  std::vector<std::vector<int64_t>> sizes;  // of what each becomes
  for (const Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    sizes.push_back(step.action == Action::kAllReduce ? traveller->part.sizes().vec() : step.result_sizes);
    elements += c10::multiply_integers(sizes.back());
    joined.bytes += step.bytes;
  }
  joined.result_sizes = {elements};
  const auto pieces = by_member(together);
  std::vector<at::Tensor> in_order;
  reshard::Box whole = {{0, 0}};
  std::vector<reshard::Box> runs;
  for (const std::vector<at::Tensor>& own : pieces) {
    const int64_t begin = whole[0].end;
    for (const at::Tensor& piece : own) {
      in_order.push_back(piece);
      whole[0].end += piece.numel();
    }
    runs.push_back({{begin, whole[0].end}});
  }
  joined.sends = Pieces(whole);
  for (size_t member = 0; member < runs.size(); ++member) {
    joined.sends.add(static_cast<int64_t>(member), runs[member]);
  }
  const at::Tensor result = run_step(ctx, joined, at::cat(in_order), op);
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
    const comm::FlightLayouts layouts(ctx, own.move->from, own.move->to);
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
