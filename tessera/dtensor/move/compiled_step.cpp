#include "tessera/dtensor/move/compiled_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/layout/joined_axes.h"

namespace tessera::dtensor {

namespace {

using layout::Coord;
using layout::ReduceOp;
using layout::Spec;
using reshard::Box;
using reshard::Step;
using reshard::StepKind;

size_t position_of(const std::vector<int64_t>& ranks, int64_t rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  TESSERA_CHECK(found != ranks.end(), "[redistribute] rank ", rank,
                " is not a member of the mesh that holds the tensor; both meshes must view the same ranks");
  return static_cast<size_t>(found - ranks.begin());
}

class StepCompiler {
 public:
  StepCompiler(const Step& step, int64_t rank)
      : step_(step),
        rank_(rank),
        line_axes_(step.line_axes()),
        coord_before_(*step.before->mesh.coord_of(rank)),
        coord_after_(*step.after->mesh.coord_of(rank)) {}

  CompiledStep compile() {
    find_group();
    const bool stays_on_rank =
        step_.kind == StepKind::kSend && step_.from.coordinate() == step_.to.coordinate();  // between its stages
    if (!reshard::is_local(step_.kind) && !stays_on_rank) {
      done_.collective = reshard::name_of(step_.kind);
      done_.bytes = static_cast<int64_t>(std::llround(step_.bytes));
    }
    find_home();
    if (step_.axis >= 0) {
      done_.from = step_.from, done_.to = step_.to;
      done_.is_at_from = gives(index()), done_.is_at_to = takes(index());
    }
    if (takes_part()) {
      box_before_ = step_.before.local_ranges(coord_before_);
      box_after_ = step_.after.local_ranges(coord_after_);
      done_.result_sizes = sizes_of(box_after_);
      compile_action();
      take_apart();
    }
    return std::move(done_);
  }

 private:
  void find_group() {
    done_.mesh = step_.before->mesh;
    done_.axis_name = done_.mesh.str();
    done_.parts = done_.mesh.size();
    if (!line_axes_.empty()) {
      layout::JoinedAxes line = layout::join_axes(done_.mesh, line_axes_);
      done_.mesh = line.mesh, done_.axis = line.axis, done_.axis_name = std::move(line.name);
      done_.parts = done_.mesh.axis(done_.axis).size;
    }
  }

  bool changes(size_t axis) const {
    return std::find(line_axes_.begin(), line_axes_.end(), static_cast<int64_t>(axis)) != line_axes_.end();
  }

  // Whether the line of this rank holds the tensor, by the axes that do not change.
  bool takes_part() const {
    for (size_t axis = 0; axis < coord_before_.size() && !line_axes_.empty(); ++axis) {
      if (!changes(axis) && !step_.before->placements[axis].holds(coord_before_[axis])) {
        return false;
      }
    }
    return true;
  }

  void find_home() {
    for (size_t axis = 0; axis < coord_before_.size(); ++axis) {
      const layout::Placement& place = step_.before->placements[axis];
      if (place.is_on() && !changes(axis)) {
        done_.home = place;
        done_.home_axis = step_.before->mesh.axis(static_cast<int64_t>(axis)).name;
        done_.is_at_home &= place.holds(coord_before_[axis]);
      }
    }
  }

  void take_apart() {
    if (!step_.put_together) {
      return;
    }
    if (step_.before->holds(coord_before_)) {
      done_.taken_apart = sizes_of(box_before_);
    }
    if (step_.after->holds(coord_after_)) {
      done_.put_together = step_.put_together.local_sizes(coord_after_);
    }
  }

  void compile_action() {
    done_.op = step_.from.is_partial() ? step_.from.op : step_.to.op;
    switch (step_.kind) {
      case StepKind::kAllReduce: done_.action = Action::kAllReduce; return;
      case StepKind::kReduceScatter:
      case StepKind::kReduce: return reduce_scatter();
      case StepKind::kAllGather: return all_gather();
      case StepKind::kAllToAll:
      case StepKind::kGather:
      case StepKind::kScatter: return all_to_all();
      case StepKind::kSend: return send();
      case StepKind::kBroadcast: return broadcast();
      case StepKind::kExchange: return exchange();
      case StepKind::kDrop: done_.action = takes(index()) ? Action::kKeep : Action::kForget; return;
      case StepKind::kSlice:
        done_.action = Action::kSlice;
        done_.slices = slices_of(box_before_, box_after_);
        return;
      case StepKind::kPad:
        done_.action = Action::kPad;
        done_.slices = slices_of(box_after_, box_before_);
        return;
      case StepKind::kPartialize: return partialize();
      case StepKind::kRelabel: return;
    }
  }

  void reduce_scatter() {
    done_.action = Action::kReduceScatter;
    done_.sends = Pieces(box_before_);
    for (int64_t i = 0; i < done_.parts; ++i) {
      if (takes(i)) {
        done_.sends.add(i, box_at(step_.after, i));
      }
    }
    forget_result_unless_taken();
  }

  void all_gather() {
    done_.action = Action::kAllGather;
    done_.receives = Pieces(box_after_);
    for (int64_t i = 0; i < done_.parts; ++i) {
      done_.receives.add(i, box_at(step_.before, i));
    }
  }

  // Each member sends every other the part of its box that the other will hold.
  void all_to_all() {
    done_.action = Action::kAllToAll;
    done_.sends = Pieces(box_before_);
    done_.receives = Pieces(box_after_);
    for (int64_t i = 0; i < done_.parts; ++i) {
      if (gives(index()) && takes(i)) {
        done_.sends.add(i, reshard::intersect(box_before_, box_at(step_.after, i)));
      }
      if (takes(index()) && gives(i)) {
        done_.receives.add(i, reshard::intersect(box_at(step_.before, i), box_after_));
      }
    }
    forget_result_unless_taken();
  }

  void broadcast() {
    done_.action = Action::kBroadcast;
    done_.root = step_.from.coordinate();
    done_.gives_part = index() == done_.root;
  }

  void send() {
    done_.action = Action::kSend;
    const layout::SpecData& spec = *step_.before;
    std::vector<int64_t> order(spec.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    const bool is_dense =
        std::none_of(order.begin(), order.end(), [&](int64_t d) { return spec.strides[d] == 0 && spec.sizes[d] > 1; });
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return spec.strides[a] > spec.strides[b]; });
    if (is_dense && !step_.form && !std::is_sorted(order.begin(), order.end())) {
      done_.order = std::move(order);
    }
  }

  void partialize() {
    const ReduceOp op = step_.to.op;
    const bool is_one = step_.from.is_on();
    const bool all_keep = !is_one && op != ReduceOp::kSum && op != ReduceOp::kProd;
    const bool keeps = all_keep || index() == (is_one ? step_.from.coordinate() : 0);
    done_.action = keeps ? Action::kKeep : Action::kFill;
  }

  void exchange() {
    done_.action = Action::kAllToAll;
    if (!step_.before->holds(coord_before_)) {  // it takes part with nothing, and keeps that
      done_.result_sizes = {0};
      return;
    }
    const reshard::Exchange exchange(reshard::Holdings(step_.before), reshard::Holdings(step_.after));
    Traffic traffic =
        compile_transfers(exchange.transfers_of(rank_), step_.before->mesh.ranks(), box_before_, box_after_);
    done_.sends = std::move(traffic.sends);
    done_.receives = std::move(traffic.receives);
  }

  void forget_result_unless_taken() {
    if (!takes(index())) {
      done_.result_sizes = {0};
    }
  }

  // Of the rank that stands at `index` of this line; and where on it this rank stands.
  Box box_at(const Spec& spec, int64_t index) const {
    Coord coord = coord_before_;
    for (size_t i = line_axes_.size(); i > 0; --i) {
      const int64_t axis = line_axes_[i - 1], size = spec->mesh.axis(axis).size;
      coord[axis] = index % size;
      index /= size;
    }
    return spec.local_ranges(coord);
  }
  bool gives(int64_t index) const { return step_.from.holds(index); }
  bool takes(int64_t index) const { return step_.to.holds(index); }
  int64_t index() const { return coord_before_[step_.axis]; }

  const Step& step_;
  const int64_t rank_;
  const std::vector<int64_t> line_axes_;
  const Coord coord_before_, coord_after_;
  Box box_before_, box_after_;
  CompiledStep done_;
};

}  // namespace

std::vector<CompiledStep> compile_path(const reshard::Path& path, int64_t rank) {
  std::vector<CompiledStep> steps;
  steps.reserve(path.steps.size());
  for (const Step& step : path.steps) {
    steps.push_back(StepCompiler(step, rank).compile());
  }
  return steps;
}

Traffic compile_transfers(const reshard::RankTransfers& transfers, const std::vector<int64_t>& ranks, const Box& before,
                          const Box& after) {
  Traffic traffic{Pieces(before), Pieces(after)};
  for (const reshard::Transfer& send : transfers.sends) {
    traffic.sends.add(static_cast<int64_t>(position_of(ranks, send.to)), send.box);
  }
  for (const reshard::Transfer& receive : transfers.receives) {
    traffic.receives.add(static_cast<int64_t>(position_of(ranks, receive.from)), receive.box);
  }
  return traffic;
}

}  // namespace tessera::dtensor
