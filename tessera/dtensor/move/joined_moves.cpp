#include "tessera/dtensor/move/joined_moves.h"

#include <iterator>
#include <numeric>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "tessera/comm/call/flight.h"
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
  bool gathers() const { return step().action == Action::kAllGather; }
  bool is_joinable(const JoinLimits& limits) const {
    return !has_arrived() &&
           (step().action == Action::kAllReduce || step().action == Action::kReduceScatter || gathers()) &&
           bytes() <= limits.part;
  }
  bool may_join(const Traveller& first) const {
    const CompiledStep &a = step(), &b = first.step();
    return a.action == b.action && a.mesh == b.mesh && a.axis == b.axis && a.op == b.op &&
           part.scalar_type() == first.part.scalar_type() && part.device() == first.part.device();
  }
  // Of what lies end to end with others'.
  int64_t bytes() const {
    const int64_t elements = gathers() ? c10::multiply_integers(step().result_sizes) : part.numel();
    return elements * static_cast<int64_t>(part.element_size());
  }
  at::Tensor taken_apart() const { return step().taken_apart.empty() ? part : part.reshape(step().taken_apart); }
  void arrive(const at::Tensor& result) {
    part = step().put_together.empty() ? result : result.reshape(step().put_together);
    ++done;
  }
};

using Travellers = std::vector<Traveller*>;

// The step of all of them at once, but for the pieces.
CompiledStep joined_step(const Travellers& together) {
  CompiledStep joined = together.front()->step();
  joined.taken_apart.clear(), joined.put_together.clear();
  joined.bytes = 0;
  for (const Traveller* traveller : together) {
    joined.bytes += traveller->step().bytes;
  }
  return joined;
}

// Runs of these lengths, one after the other, one for each member.
Pieces runs_of(const std::vector<int64_t>& lengths) {
  Pieces runs({{0, std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}});
  int64_t begin = 0;
  for (size_t member = 0; member < lengths.size(); ++member) {
    runs.add(static_cast<int64_t>(member), {{begin, begin + lengths[member]}});
    begin += lengths[member];
  }
  return runs;
}

int64_t numel(const Pieces::Piece& piece) { return piece.count * piece.length; }

void run_alone(comm::RankContext& ctx, Traveller& traveller, const char* op) {
  traveller.part = run_step(ctx, traveller.step(), traveller.part, op);
  ++traveller.done;
}

// What each member of the group gets of each part; one member, if all get all.
std::vector<std::vector<at::Tensor>> by_member(const Travellers& together) {
  std::vector<std::vector<at::Tensor>> pieces;
  for (const Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    const at::Tensor part = traveller->taken_apart();
    const std::vector<at::Tensor> own =
        step.action == Action::kAllReduce ? std::vector<at::Tensor>{part} : packed(step.sends, part, step.parts);
    pieces.resize(own.size());
    for (size_t member = 0; member < own.size(); ++member) {
      pieces[member].push_back(own[member].reshape({-1}));
    }
  }
  return pieces;
}

void reduce_together(comm::RankContext& ctx, const Travellers& together, const char* op) {
  CompiledStep joined = joined_step(together);
  int64_t elements = 0;
  std::vector<std::vector<int64_t>> sizes;  // of what each becomes
  for (const Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    sizes.push_back(step.action == Action::kAllReduce ? traveller->part.sizes().vec() : step.result_sizes);
    elements += c10::multiply_integers(sizes.back());
  }
  joined.result_sizes = {elements};
  std::vector<at::Tensor> in_order;
  std::vector<int64_t> lengths;
  for (const std::vector<at::Tensor>& own : by_member(together)) {
    lengths.push_back(0);
    for (const at::Tensor& piece : own) {
      in_order.push_back(piece);
      lengths.back() += piece.numel();
    }
  }
  joined.sends = runs_of(lengths);
  const at::Tensor result = run_step(ctx, joined, at::cat(in_order), op);
  int64_t begin = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    const int64_t own = c10::multiply_integers(sizes[i]);
    together[i]->arrive(result.narrow(0, begin, own).view(sizes[i]).clone());
    begin += own;
  }
}

void gather_together(comm::RankContext& ctx, const Travellers& together, const char* op) {
  CompiledStep joined = joined_step(together);
  std::vector<at::Tensor> own;
  std::vector<int64_t> lengths(static_cast<size_t>(joined.parts));
  for (const Traveller* traveller : together) {
    own.push_back(traveller->taken_apart().reshape({-1}));
    for (const Pieces::Piece& piece : traveller->step().receives.all()) {
      lengths[static_cast<size_t>(piece.member)] += numel(piece);
    }
  }
  joined.receives = runs_of(lengths);
  joined.result_sizes = {std::accumulate(lengths.begin(), lengths.end(), int64_t{0})};
  const at::Tensor all = run_step(ctx, joined, at::cat(own), op);
  std::vector<int64_t> next;  // where the next piece of each member begins
  std::exclusive_scan(lengths.begin(), lengths.end(), std::back_inserter(next), int64_t{0});
  for (Traveller* traveller : together) {
    const CompiledStep& step = traveller->step();
    const at::Tensor result = at::empty(step.result_sizes, all.options());
    for (const Pieces::Piece& piece : step.receives.all()) {
      int64_t& begin = next[static_cast<size_t>(piece.member)];
      narrowed(result, piece.slices).copy_(all.narrow(0, begin, numel(piece)).view(piece.sizes));
      begin += numel(piece);
    }
    traveller->arrive(result);
  }
}

}  // namespace

std::vector<at::Tensor> run_moves(comm::RankContext& ctx, const std::vector<MovePtr>& moves,
                                  std::vector<at::Tensor> locals, const JoinLimits& limits, const char* op) {
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
      if (!own.is_joinable(limits)) {
        run_alone(ctx, own, op);
        continue;
      }
      Travellers together = {&own};
      int64_t bytes = own.bytes();
      for (size_t k = i + 1; k < travellers.size(); ++k) {
        Traveller& other = travellers[k];
        if (other.is_joinable(limits) && other.may_join(own) && bytes + other.bytes() <= limits.all) {
          together.push_back(&other);
          bytes += other.bytes();
        }
      }
      if (together.size() == 1) {
        run_alone(ctx, own, op);
      } else if (own.gathers()) {
        gather_together(ctx, together, op);
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
