#include "tessera/dtensor/dispatch/operands.h"

#include <algorithm>

#include <torch/csrc/autograd/graph_task.h>

#include "tessera/dtensor/dispatch/absent.h"
#include "tessera/dtensor/dispatch/step_gradients.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/layout/vocabulary.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

// How the dims of a view that only permutes those of its base stand in the base; empty: it is another view. Dims of one
// element may stand anywhere.
c10::SmallVector<int64_t, 4> permutation_of(const Meta& view, const Meta& base) {
  c10::SmallVector<int64_t, 4> order;
  const layout::SpecData &own = *view.spec, &whole = *base.spec;
  for (int64_t d = 0; d < own.ndim() && own.ndim() == whole.ndim(); ++d) {
    for (int64_t k = 0; k < whole.ndim(); ++k) {
      const bool is_free = std::find(order.begin(), order.end(), k) == order.end();
      if (is_free && own.sizes[d] == whole.sizes[k] && own.strides[d] == whole.strides[k]) {
        order.push_back(k);
        break;
      }
    }
  }
  return order.size() == whole.sizes.size() ? order : c10::SmallVector<int64_t, 4>();
}

// A parameter of which this rank has `part`, where operators read it: from where it stays for the step, if it does.
at::Tensor gathered_alone(RankState& state, const char* op, const MetaPtr& meta, at::Tensor part) {
  Engine& engine = state.engine;
  const GatherPolicy& policy = *meta->parameter->gather;
  const Spec stored = meta->spec.with(without_on(meta->spec->placements));
  Spec from = stored;
  if (policy.is_kept) {
    const Spec kept = kept_spec(from, policy);
    part = engine.kept_parameters.find_or_run(state.ctx, meta, *engine.moves.find_or_plan(from, kept), part, op);
    from = kept;
  }
  const Spec to = read_spec(stored, policy);
  return from == to
             ? part
             : engine.gathered_parameters.find_or_run(state.ctx, meta, *engine.moves.find_or_plan(from, to), part, op);
}

// ... together with those of its group, if it has one.
at::Tensor gathered_parameter(RankState& state, const char* op, const MetaPtr& meta) {
  const ParameterInfo& info = *meta->parameter;
  return info.group && info.group->has(info.member, *meta)
             ? state.engine.gathered_groups.read(state.ctx, *info.group, info.member, op)
             : gathered_alone(state, op, meta, meta->local);
}

// The same of a view of one, such as `w.t()`, which is made anew at every reading: the parameter's own copy, seen so.
at::Tensor gathered_view(RankState& state, const char* op, Meta* meta) {
  const MetaPtr held = MetaPtr::reclaim_copy(meta);
  if (!meta->root || meta->root->parameter != meta->parameter || meta->derived()) {
    return gathered_parameter(state, op, held);
  }
  const auto order = permutation_of(*meta, *meta->root);
  return order.empty() ? gathered_parameter(state, op, held) : gathered_parameter(state, op, meta->root).permute(order);
}

// `spec`, on axes on which it is On as `to`.
Spec at_places(const Spec& spec, const Spec& to) {
  layout::Placements places = spec->placements;
  for (size_t axis = 0; axis < places.size(); ++axis) {
    places[axis] = places[axis].is_on() ? to->placements[axis] : places[axis];
  }
  return spec.with(places);
}

// ... and on the others.
Spec at_own_places(const Spec& spec, const Spec& to) {
  layout::Placements places = to->placements;
  for (size_t axis = 0; axis < places.size(); ++axis) {
    places[axis] = spec->placements[axis].is_on() ? spec->placements[axis] : places[axis];
  }
  return spec.with(places);
}

// Ranks run a body again one after the other, each in its own backward pass, and send each other what it reads. A rank
// of several stages, or parts of a vocabulary, does so in the pass of each of them: another one of its own would be
// asked for a value that only a later pass makes.
void check_sends(const RankState& state, const char* op, const Meta& meta, const Spec& to) {
  const comm::Walk& walk = state.ctx.walk;
  TESSERA_CHECK(!state.pass.is_recomputing() || walk.stage == comm::Walk::kAllStages || meta.parameter, "[", op,
                "] a recomputed body sends a value of its own from one stage to another (", meta.spec.str(), " to ",
                to.str(), ", rank ", state.ctx.rank, ", stage ", walk.stage, ", micro-batch ", walk.micro_batch,
                "), which a schedule that gives ranks several stages, or cuts the vocabulary, has no place for. "
                "Recompute modules that lie on one stage, such as single layers (`model.layers.*`), or choose a "
                "schedule of one stage a rank (1f1b) without a cut vocabulary.");
}

// A forward pass that goes back may meet passes that wait for it: should ranks part, they know where it did.
void note_way_back(RankState& state, const char* op, const Spec& from, const Spec& to) {
  comm::Program::WayBack& back = state.ctx.program.way_back;
  const std::string& axis = state.ctx.walk.axis;
  if (!state.ctx.walk.is_scheduled || back.reader || torch::autograd::get_current_graph_task_id() != -1) {
    return;
  }
  const size_t stages = from->mesh.axis_index(axis);
  const layout::Placement &made = from->placements[stages], &read = to->placements[stages];
  if (made.is_on() && read.is_on() && !layout::is_of_vocabulary(made.stage) && !layout::is_of_vocabulary(read.stage) &&
      read.stage < made.stage) {
    back = {op, made.stage, read.stage};
  }
}

// Whether this rank has it in the walk of another of its stages.
bool is_of_other_walk(const RankState& state, const Spec& spec) {
  return spec->holds(state.ctx.coord(spec->mesh)) && !state.has_part(spec);
}

// The value at other coordinates of the axes on which it is On. Whoever reads it there once keeps it as long as it
// lives, for those that read it later and for backward. It goes from stage to stage, as passes do; a parameter, which
// passes of several stages may read first, always from its own.
at::Tensor sent_part(RankState& state, const char* op, Meta& meta, const Spec& to) {
  if (const GatheredCopy* found = meta.find_sent(to)) {
    return found->part;
  }
  const layout::Coord& coord = state.ctx.coord(to->mesh);
  if (meta.parameter && meta.spec->holds(coord) && to->holds(coord)) {
    return meta.local;  // of one of this rank's stages at another, whichever runs
  }
  check_sends(state, op, meta, to);
  if (!meta.parameter) {
    note_way_back(state, op, meta.spec, to);
  }
  const GatheredCopy* nearer = meta.parameter ? nullptr : meta.nearest_sent(to);
  const Move& move = *state.engine.moves.find_or_plan(nearer ? nearer->spec : meta.spec, to);
  const int64_t messages = state.ctx.all_messages();
  at::Tensor part = run_move(state.ctx, move, nearer ? nearer->part : meta.local, op);
  if (state.ctx.walk.is_scheduled && state.ctx.all_messages() != messages) {
    state.engine.sent.push_back({&meta, meta.spec, to, op});
  }
  // A parameter is read in every walk: those of this rank's other stages leave it to the one that sends or receives.
  if (!meta.parameter || !(is_of_other_walk(state, move.from) || is_of_other_walk(state, to))) {
    meta.keep_sent(to, part);
  }
  return part;
}

// ... and where it is a parameter that is kept in parts, gathered there.
at::Tensor sent_whole(RankState& state, const char* op, Meta& meta, const Spec& to, bool gathers) {
  at::Tensor part = sent_part(state, op, meta, to);
  return gathers && state.has_part(to) ? gathered_alone(state, op, MetaPtr::reclaim_copy(&meta), part) : part;
}

// A view of a parameter, such as `w.t()`, is made anew at every reading: the parameter itself is sent.
at::Tensor sent_view(RankState& state, const char* op, Meta& meta, const Spec& to, bool gathers) {
  if (meta.parameter && meta.root && meta.root->parameter == meta.parameter && !meta.derived()) {
    if (const auto order = permutation_of(meta, *meta.root); !order.empty()) {
      const Spec there = at_places(meta.root->spec, to);
      const at::Tensor part = sent_whole(state, op, *meta.root, there, gathers);
      return state.has_part(there) ? part.permute(order) : part;
    }
  }
  return sent_whole(state, op, meta, to, gathers);
}

// The value's part on another layout, kept for those that read it so later if it costs messages. A parameter is read in
// the walks of all of this rank's stages, and is moved in one of them.
at::Tensor moved_once(RankState& state, const char* op, Meta& meta, const Move& move, const at::Tensor& part) {
  const bool is_kept = move.communicates && !(meta.parameter && is_of_other_walk(state, move.from));
  return is_kept ? state.engine.gathered.find_or_run(state.ctx, MetaPtr::reclaim_copy(&meta), move, part, op)
                 : run_move(state.ctx, move, part, op);
}

at::Tensor sent(RankState& state, const char* op, const CallPlan::OperandMove& action, const at::Tensor& tensor) {
  const LocalScope scope;
  const Move& move = *action.move;
  Meta* meta = meta_of(tensor);
  const Spec there = at_places(meta->spec, action.there);
  at::Tensor part = sent_view(state, op, *meta, there, action.gathers_parameter);
  if (there == move.to || action.gathers_parameter) {
    return part;
  }
  const Move& rest = *state.engine.moves.find_or_plan(there, move.to);
  return moved_once(state, op, *meta, rest, part);
}

// The operand on the layout that the plan wants.
at::Tensor moved(RankState& state, const char* op, const CallPlan::OperandMove& action, const at::Tensor& tensor) {
  const Move& move = *action.move;
  if (!is_dtensor(tensor)) {
    return run_move(state.ctx, move, tensor, op);
  }
  Meta* meta = meta_of(tensor);
  if (meta->spec == move.to) {
    return meta->local;  // another operand of this call was the same tensor
  }
  if (C10_UNLIKELY(meta->spec != move.from)) {  // ... and was merged to another layout
    return run_move(state.ctx, *state.engine.moves.find_or_plan(meta->spec, move.to), meta->local, op);
  }
  if (move.from->has_partial && merge_step_gradients(state, *meta)) {
    return moved(state, op, action, tensor);
  }
  if (move.from->has_partial) {
    // Merged once, however many operators read it: the same logical value stays in the tensor, in its dtype, and on its
    // stage, whose operators may be the next to read it.
    const Spec merged = action.there ? at_own_places(move.from, move.to) : move.to.with_dtype(move.from->dtype);
    const Move& merge = merged == move.to ? move : *state.engine.moves.find_or_plan(move.from, merged);
    meta->replace(run_move(state.ctx, merge, meta->local, op), merged);
    drop_unseen_base(*meta);
    if (action.there) {
      return sent(state, op, action, tensor);
    }
    return move.casts ? meta->local.to(move.to->dtype) : meta->local;
  }
  if (action.there) {
    return sent(state, op, action, tensor);
  }
  if (action.gathers_parameter) {
    const LocalScope scope;
    return gathered_view(state, op, meta);
  }
  return moved_once(state, op, *meta, move, meta->local);
}

// The operands that stay as they are, as local tensors: a merge below replaces the part of a tensor that may be an
// operand twice (`x * x` of a scalar P(sum) takes one of them as it is).
void unwrap_unmoved(const Invocation& call, const CallPlan& plan) {
  for (size_t i = 0; i < call.info.num_args(); ++i) {
    IValue& arg = call.args()[i];
    if (call.info.args[i].written || !arg.isTensor() || !is_dtensor(arg.toTensor())) {
      continue;
    }
    const bool moves_it = std::any_of(plan.moves.begin(), plan.moves.end(), [&](const CallPlan::OperandMove& move) {
      return move.arg == static_cast<int>(i);
    });
    if (!moves_it) {
      arg = IValue(meta_of(arg.toTensor())->local);
    }
  }
}

void move_operands(const Invocation& call, const CallPlan& plan) {
  for (const CallPlan::OperandMove& action : plan.moves) {
    IValue& arg = call.args()[action.arg];
    const at::Tensor tensor = action.item < 0 ? arg.toTensor() : arg.toListRef()[action.item].toTensor();
    at::Tensor result = moved(*call.state, call.info.name.c_str(), action, tensor);
    if (!call.info.args[action.arg].written) {
      replace_tensor(arg, action.item, std::move(result));
    }
  }
}

void unwrap_list(IValue& arg) {
  for_each_tensor({arg}, [&](const at::Tensor& tensor, int, int item) {
    if (is_dtensor(tensor)) {
      replace_tensor(arg, item, meta_of(tensor)->local);
    }
  });
}

}  // namespace

void send_ahead(RankState& state, const char* reader, Meta& value, const Spec& to) {
  const LocalScope scope;
  sent_part(state, reader, value, to);
}

[[gnu::flatten]] void prepare_operands(const Invocation& call, const CallPlan& plan,
                                       c10::SmallVectorImpl<at::Tensor>& written) {
  if (!plan.moves.empty()) {
    unwrap_unmoved(call, plan);
    move_operands(call, plan);
  }
  IValue* args = call.args();
  for (const int i : call.info.tensor_args) {
    IValue& arg = args[i];
    if (C10_UNLIKELY(call.info.writes && call.info.args[i].written)) {
      for_each_tensor({arg}, [&](const at::Tensor& tensor, int, int) { written.push_back(tensor); });
    }
    if (arg.isTensor()) {
      if (at::Tensor& tensor = arg.toTensor(); is_dtensor(tensor)) {
        tensor = at::Tensor(meta_of(tensor)->local);
      }
    } else if (arg.isList()) {
      unwrap_list(arg);
    }
  }
}

}  // namespace tessera::dtensor
