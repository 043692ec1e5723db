#include "tessera/dtensor/call_plan.h"

#include <ATen/EmptyTensor.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/exact_loss.h"
#include "tessera/rules/propagate.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Placements;
using torch::jit::Stack;

const layout::Mesh& mesh_of(const OpInfo& info, c10::ArrayRef<IValue> args) {
  const layout::Mesh* mesh = nullptr;
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (!is_dtensor(tensor)) return;
    const Spec& spec = meta_of(tensor)->spec;
    TESSERA_CHECK(!mesh || *mesh == spec->mesh, "[", info.name, "] the operands live on different meshes: ", mesh->str(), " and ",
                  spec->mesh.str(), ". Redistribute one of them to the other's mesh first.");
    mesh = &spec->mesh;
  });
  TESSERA_ASSERT(mesh);
  return *mesh;
}

rules::Call make_call(const OpInfo& info, c10::ArrayRef<IValue> args) {
  rules::Call call;
  call.name = info.name;
  call.schema = &info.op.schema();
  call.args = args.vec();
  const layout::Mesh& mesh = mesh_of(info, args);
  for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int) {
    rules::Operand operand;
    operand.arg = arg;
    operand.is_written = info.args[arg].written;
    if (is_dtensor(tensor)) {
      operand.spec = meta_of(tensor)->spec;
      operand.is_parameter = meta_of(tensor)->parameter != nullptr;
    } else {
      operand.is_plain = true;
      operand.is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      operand.spec = Spec::make(mesh, Placements(mesh.ndim()), tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    call.operands.push_back(std::move(operand));
  });
  return call;
}

// Writing into a plain tensor keeps it plain, so every rank must write the same value.
void check_plain_writes(const rules::Call& call) {
  for (const rules::Operand& written : call.operands) {
    if (!written.is_written || !written.is_plain) continue;
    for (const rules::Operand& read : call.operands) {
      TESSERA_CHECK(read.spec->is_replicated, "[", rules::describe(call), "] cannot write a distributed value into a plain tensor: each "
                    "rank would keep another part. Create the target as a DTensor (zeros_like of a DTensor, or a factory inside the "
                    "job), or write full_tensor(value).");
    }
  }
}

IValue meta_argument(const IValue& value) {
  const auto meta_tensor = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    return meta;
  };
  if (value.isTensor()) return meta_tensor(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta_tensor(tensor));
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isList() && value.toListRef().size() > 0 && value.toListRef()[0].type()->kind() != c10::TypeKind::IntType) {
    bool tensors = false;
    for (const IValue& item : value.toListRef()) tensors |= item.isTensor();
    if (!tensors) return value;
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& item : value.toListRef()) {
      list.push_back(item.isTensor() ? std::optional<at::Tensor>(meta_tensor(item.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

rules::Output output_like(const at::Tensor& tensor) {
  rules::Output output;
  if (!tensor.defined()) return output;
  output.sizes = tensor.sizes().vec();
  output.strides = tensor.strides().vec();
  output.dtype = tensor.scalar_type();
  return output;
}

// The operand that argument `arg` is.
int operand_of_arg(const rules::Call& call, int arg) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (call.operands[i].arg == arg) return static_cast<int>(i);
  }
  return -1;
}

// Shapes of the results, from the operator itself on meta tensors. Fills `defined` for each output.
void infer_outputs(const OpInfo& info, rules::Call& call, CallPlan& plan, std::vector<bool>& defined) {
  LocalScope scope;
  Stack stack;
  stack.reserve(call.args.size());
  for (const IValue& value : call.args) stack.push_back(meta_argument(value));
  info.op.callBoxed(stack);
  for (size_t i = 0; i < info.num_returns(); ++i) {
    const IValue& result = stack[stack.size() - info.num_returns() + i];
    if (result.isTensorList()) {
      plan.list_returns.push_back(static_cast<int>(result.toTensorList().size()));
      for (const at::Tensor& tensor : result.toTensorVector()) {
        call.outputs.push_back(output_like(tensor));
        call.outputs.back().is_view = info.is_view;
        defined.push_back(true);
      }
      continue;
    }
    plan.list_returns.push_back(-1);
    if (!result.isTensor()) continue;
    call.outputs.push_back(output_like(result.toTensor()));
    defined.push_back(result.toTensor().defined());
    call.outputs.back().is_view = info.is_view;
    if (info.written_return[i] >= 0) call.outputs.back().written_operand = operand_of_arg(call, info.written_return[i]);
  }
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

void outputs_from_factors(const OpInfo& info, rules::Call& call, const rules::FactorMap& map, CallPlan& plan, std::vector<bool>& defined) {
  for (const rules::TensorFactors& tensor : map.outputs) {
    rules::Output output;
    for (const rules::DimFactors& dim : tensor) {
      int64_t size = 1;
      for (int factor : dim) size *= map.factors[factor].extent;
      output.sizes.push_back(size);
    }
    const layout::SpecData& first = *call.operands.at(0).spec;
    const size_t index = call.outputs.size();
    output.dtype = map.dtypes.empty() ? first.dtype : map.dtypes.at(index);
    output.strides = output.sizes == first.sizes ? first.strides : contiguous_strides(output.sizes);
    if (info.written_return.at(index) >= 0) output.written_operand = operand_of_arg(call, info.written_return[index]);
    call.outputs.push_back(std::move(output));
    defined.push_back(true);
    plan.list_returns.push_back(-1);
  }
  TESSERA_ASSERT(plan.list_returns.size() == info.num_returns());
}

// Operators that libtorch runs on meta tensors from Python only are elementwise: their results are like their first operand.
void outputs_like_first(const OpInfo& info, rules::Call& call, CallPlan& plan, std::vector<bool>& defined) {
  const layout::SpecData& first = *call.operands.at(0).spec;
  for (size_t i = 0; i < info.num_returns(); ++i) {
    const int written = info.written_return[i] >= 0 ? operand_of_arg(call, info.written_return[i]) : -1;
    call.outputs.push_back({.sizes = first.sizes, .strides = first.strides, .dtype = first.dtype, .written_operand = written});
    defined.push_back(true);
    plan.list_returns.push_back(-1);
  }
}

// What the forward value's layout asks of a gradient: a Partial is merged into the layout of the forward result, and a
// parameter's gradient is cut as the parameter is.
rules::Wishes wishes_of(const rules::Call& call, const CallPlan* forward) {
  rules::Wishes wishes;
  if (!forward) return wishes;
  wishes.operands.resize(call.operands.size());
  wishes.outputs.resize(call.outputs.size());
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (!call.operands[i].spec->has_partial) continue;
    for (const CallPlan::Output& output : forward->outputs) {
      if (output.defined && output.final_spec->sizes == call.operands[i].spec->sizes) {
        wishes.operands[i] = output.final_spec->placements;
        break;
      }
    }
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    int matches = 0;
    const layout::SpecData* found = nullptr;
    for (size_t k = 0; k < forward->operands.size(); ++k) {
      if (forward->operands[k]->sizes != call.outputs[i].sizes) continue;
      ++matches;
      if (forward->operand_is_parameter[k]) found = forward->operands[k].get();
    }
    if (found && matches == 1) wishes.outputs[i] = found->placements;
  }
  return wishes;
}

// The parameter whose wishes the call should meet: one that reads labelled activations beside it, as a model does. An optimizer,
// which reads parameters with gradients and moments, is none of the plan's business.
const ParameterInfo* wanting_parameter(c10::ArrayRef<IValue> args) {
  const ParameterInfo* found = nullptr;
  bool has_activation = false;
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (!is_dtensor(tensor)) return;
    const Meta& meta = *meta_of(tensor);
    if (meta.parameter && (meta.parameter->input || meta.parameter->output)) found = meta.parameter;
    has_activation |= !meta.parameter && !meta.spec->labels.empty();
  });
  return has_activation ? found : nullptr;
}

bool sizes_match(const Placements& placements, const layout::SpecData& spec) {
  for (const layout::Placement& placement : placements) {
    if (placement.is_shard() && placement.dim >= spec.ndim()) return false;
  }
  return true;
}

// What the plan wants; where the tensor is cut along the dim already it keeps its cuts, uneven micro-batches above all.
Placements wished(Placements wants, const layout::SpecData& spec) {
  for (size_t axis = 0; axis < wants.size(); ++axis) {
    const layout::Placement& now = spec.placements[axis];
    if (now.is_shard() && wants[axis].is_shard(now.dim)) wants[axis] = now;
  }
  return wants;
}

// Rewrites the arguments that carry sizes of the result to this rank's sizes.
void rewrite_sizes(const rules::FactorMap& map, const CallPlan& decided, const layout::Coord& coord, CallPlan& plan) {
  for (const rules::SizeArg& size : map.sizes) {
    const auto local = decided.outputs.at(size.output).spec.local_sizes(coord);
    if (size.dim < 0) {
      plan.rewritten.emplace_back(size.arg, c10::List<int64_t>(local));
    } else {
      plan.rewritten.emplace_back(size.arg, local.at(size.dim));
    }
  }
}

uint64_t program_key_of(const rules::Call& call) {
  uint64_t key = base::hash_string(call.name);
  for (const rules::Operand& operand : call.operands) key = base::hash_combine(key, operand.spec->hash);
  for (const IValue& value : call.args) {
    if (value.isInt()) key = base::hash_combine(key, static_cast<uint64_t>(value.toInt()));
    if (value.isIntList()) {
      for (int64_t item : value.toIntVector()) key = base::hash_combine(key, static_cast<uint64_t>(item));
    }
  }
  return key;
}

bool is_reshape_like(const std::string& name) {
  return name == "aten::view" || name == "aten::_unsafe_view";
}

template <typename Rule>
rules::Decomposition decomposition_of(const Rule& rule, const rules::Call& call) {
  return rule.decompose && (!rule.decompose_when || rule.decompose_when(call)) ? rule.decompose : nullptr;
}

const rules::ExactRule* exact_rule_of(const RankState& state, const OpInfo& info, const rules::Call& call) {
  if (const rules::ExactRule* loss = find_exact_loss(call)) return loss;
  const rules::ExactRule* rule = rules::find_exact_rule(info.name);
  TESSERA_CHECK(rule && (!rule->accepts || rule->accepts(call)), "[", rules::describe(call), "] numerics exact: ", info.name, rule ? " called like this" : "",
                " has no form whose bits do not depend on the layout (rank ", state.ctx.rank, "). Compute it on full_tensor(x), or use numerics fast.");
  return rule;
}

rules::LocalCall make_local_call(const OpInfo& info, const rules::Propagation& decided, const layout::Coord& coord) {
  rules::LocalCall local;
  local.op = &info.op;
  local.operands = decided.operands;
  local.outputs = decided.outputs;
  for (const Spec& spec : decided.operands) local.operand_ranges.push_back(spec.local_ranges(coord));
  for (const Spec& spec : decided.outputs) local.output_ranges.push_back(spec.local_ranges(coord));
  return local;
}

Placements without_partial(Placements placements) {
  for (layout::Placement& placement : placements) placement = placement.is_partial() ? layout::Replicate() : placement;
  return placements;
}

// Where a sum should lie: as the forward operand or result of the same sizes, if there is one.
std::optional<Placements> forward_layout(const CallPlan* forward, const rules::Output& output) {
  if (!forward) return std::nullopt;
  for (const Spec& operand : forward->operands) {
    if (operand->sizes == output.sizes) return without_partial(operand->placements);
  }
  return std::nullopt;
}

// In `exact` no Partial leaves a call: sums are merged at once, those over samples wait in a handle laid out as the parameter.
void finish_exact(RankState& state, const OpInfo& info, const rules::Call& call, const rules::Propagation& decided, const CallPlan* forward,
                  CallPlan& plan) {
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    CallPlan::Output& output = plan.outputs[i];
    if (!output.spec->has_partial) continue;
    const Spec merged = output.spec.with(without_partial(output.spec->placements));
    if (output.final_spec == output.spec) {
      const auto wished = forward_layout(forward, call.outputs[i]);
      output.final_spec = wished ? merged.with(*wished) : merged;
    }
    if (plan.exact && i == 0) output.spec = merged;
    output.move = output.final_spec == output.spec ? nullptr : state.moves.find_or_plan(output.spec, output.final_spec);
  }
  if (!plan.exact) return;
  plan.exact->local = make_local_call(info, decided, state.ctx.coord(call.operands.at(0).spec->mesh));
  if (!plan.exact->sample) return;
  CallPlan::Output& output = plan.outputs.at(0);
  if (const auto wished = forward_layout(forward, call.outputs[0])) output.final_spec = output.spec.with(*wished);
  output.move = nullptr;
}

}  // namespace

void check_explicit(const RankState& state, const std::string& call, const std::string& argument, const Move& move) {
  if (state.mode == Mode::kImplicit || !move.communicates) return;
  const std::string message = c10::str("[", call, "] needs a redistribution that the program did not write: ", argument, " from ",
                                       move.from.layout_str(), " to ", move.to.layout_str(), " (rank ", state.ctx.rank, "). Write: ", argument,
                                       " = tessera::redistribute(", argument, ", \"", move.to.layout_str(), "\");");
  TESSERA_CHECK(state.mode != Mode::kExplicit, message);
  TORCH_WARN(message);
}

void check_explicit(const RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, const CallPlan& plan) {
  for (const CallPlan::OperandMove& action : plan.moves) {
    if (action.move->communicates) {
      check_explicit(state, rules::describe(make_call(info, args)), info.op.schema().arguments()[action.arg].name(), *action.move);
    }
  }
}

std::unique_ptr<CallPlan> make_call_plan(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, const CallPlan* forward) {
  auto plan = std::make_unique<CallPlan>();
  rules::Call call = make_call(info, args);
  TESSERA_CHECK(info.rule, "[", rules::describe(call), "] this operator has no sharding rule, so tessera cannot say what a distributed "
                "result would be (rank ", state.ctx.rank, "). Call it on full_tensor(x), or add a rule (docs/adding.md).");
  check_plain_writes(call);
  for (const rules::Operand& operand : call.operands) {
    plan->operands.push_back(operand.spec);
    plan->operand_is_parameter.push_back(operand.is_parameter);
  }
  plan->program_key = program_key_of(call);

  const rules::ExactRule* exact = state.lattice ? exact_rule_of(state, info, call) : nullptr;
  plan->decompose = exact ? decomposition_of(*exact, call) : decomposition_of(*info.rule, call);
  if (plan->decompose) return plan;

  std::vector<bool> defined;
  const bool from_factors = info.rule->shape == rules::ShapeSource::kFactors;
  if (!from_factors) info.has_meta ? infer_outputs(info, call, *plan, defined) : outputs_like_first(info, call, *plan, defined);

  // What the plan wants of the activations that meet a parameter.
  const ParameterInfo* wants = forward || info.is_view ? nullptr : wanting_parameter(args);
  if (wants && wants->input) {
    for (rules::Operand& operand : call.operands) {
      if (!operand.is_parameter && sizes_match(*wants->input, *operand.spec)) {
        operand.spec = operand.spec.with(wished(*wants->input, *operand.spec));
        break;
      }
    }
  }

  const rules::FactorMap map = info.rule->map(call);
  if (from_factors) outputs_from_factors(info, call, map, *plan, defined);
  const rules::Propagation decided = rules::propagate(call, map, wishes_of(call, forward));

  size_t operand = 0;
  for_each_tensor(args, [&](const at::Tensor&, int arg, int item) {
    const Spec from = plan->operands[operand];
    const Spec to = decided.operands.at(operand);
    if (from->placements != to->placements && !map.metadata_only) {
      plan->moves.push_back({arg, item, state.moves.find_or_plan(from, from.with(to->placements))});
    }
    ++operand;
  });
  bool detached = false;
  for (const CallPlan::OperandMove& action : plan->moves) {
    detached |= info.is_view && !action.move->keeps_storage && !action.move->from->has_partial;
  }
  for (size_t i = 0; i < decided.outputs.size(); ++i) {
    CallPlan::Output output;
    output.spec = output.final_spec = decided.outputs[i];
    output.defined = defined[i];
    output.is_view = call.outputs[i].is_view;
    output.detached_view = detached;
    if (wants && wants->output && defined[i] && sizes_match(*wants->output, *output.spec)) {
      output.final_spec = output.spec.with(wished(*wants->output, *output.spec));
      if (!(output.final_spec == output.spec)) output.move = state.moves.find_or_plan(output.spec, output.final_spec);
    }
    plan->outputs.push_back(std::move(output));
  }

  const layout::Coord& coord = state.ctx.coord(call.operands.at(0).spec->mesh);
  rewrite_sizes(map, *plan, coord, *plan);
  if (is_reshape_like(info.name)) {
    plan->reshape = true;
    plan->local_shape = decided.outputs.at(0).local_sizes(coord);
    plan->rewritten.clear();
  }
  plan->local = exact && exact->local ? exact->local : info.rule->local;
  if (plan->local) plan->local_call = std::make_unique<rules::LocalCall>(make_local_call(info, decided, coord));
  if (exact) {
    plan->exact = plan_exact_sum(state.ctx, *state.lattice, call, *exact, map, decided);
    finish_exact(state, info, call, decided, forward, *plan);
  }
  return plan;
}

}  // namespace tessera::dtensor
