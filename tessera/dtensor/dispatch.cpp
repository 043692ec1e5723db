#include "tessera/dtensor/dispatch.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/reshape.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/dtensor/plain.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;

// First words of the arguments in a key. Spec pointers are larger than any of them.
enum Tag : uint64_t { kPlain = 2, kNone, kFalse, kTrue, kInt, kInts, kNumber, kString, kTensors, kOther };

// What one scan of the arguments finds.
struct Scan {
  PlanCache::Key key;
  const Origin* origin = nullptr;
  Recorder* recorder = nullptr;
  const ParameterInfo* parameter = nullptr;
  bool has_plain = false;
};

void scan_tensor(const at::Tensor& tensor, Scan& scan) {
  if (!is_dtensor(tensor)) {
    if (!tensor.defined()) {
      scan.key.push_back(kNone);
      return;
    }
    scan.has_plain = true;
    scan.key.push_back(kPlain);
    scan.key.push_back(static_cast<uint64_t>(tensor.scalar_type()) << 32 | static_cast<uint64_t>(tensor.dim()) << 1 |
                       static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()));
    for (int64_t size : tensor.sizes()) scan.key.push_back(static_cast<uint64_t>(size));
    return;
  }
  const Meta* meta = meta_of(tensor);
  const uint64_t spec = reinterpret_cast<uint64_t>(meta->spec.get());
  if (const ParameterInfo* parameter = meta->parameter) {
    scan.key.push_back(spec | 1);
    scan.key.push_back(parameter->input || parameter->output ? reinterpret_cast<uint64_t>(parameter) : 0);
    scan.parameter = parameter;
  } else {
    scan.key.push_back(spec);
  }
  if (!scan.origin) scan.origin = meta->origin;
  if (C10_UNLIKELY(!spec)) scan.recorder = meta->rare->recorder.get();
}

void scan_list(const IValue& value, Scan& scan) {
  if (value.isIntList()) {
    const auto list = value.toIntVector();
    scan.key.push_back(kInts);
    scan.key.push_back(list.size());
    scan.key.append(list.begin(), list.end());
    return;
  }
  const auto items = value.toListRef();
  scan.key.push_back(kTensors);
  scan.key.push_back(items.size());
  for (const IValue& item : items) {
    if (item.isTensor()) {
      scan_tensor(item.toTensor(), scan);
    } else if (item.isBool()) {
      scan.key.push_back(item.toBool() ? kTrue : kFalse);
    } else if (item.isDouble()) {
      uint64_t bits;
      const double number = item.toDouble();
      std::memcpy(&bits, &number, sizeof bits);
      scan.key.push_back(bits);
    } else {
      scan.key.push_back(kNone);
    }
  }
}

void scan_argument(const IValue& value, bool reads_numbers, Scan& scan) {
  if (value.isTensor()) {
    scan_tensor(value.toTensor(), scan);
  } else if (value.isInt()) {
    scan.key.push_back(kInt);
    scan.key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    scan.key.push_back(value.toBool() ? kTrue : kFalse);
  } else if (value.isNone()) {
    scan.key.push_back(kNone);
  } else if (value.isDouble()) {
    scan.key.push_back(kNumber);
    if (reads_numbers) {
      uint64_t bits;
      const double number = value.toDouble();
      std::memcpy(&bits, &number, sizeof bits);
      scan.key.push_back(bits);
    }
  } else if (value.isList()) {
    scan_list(value, scan);
  } else if (value.isString()) {
    scan.key.push_back(kString);
    scan.key.push_back(base::hash_string(value.toStringRef()));
  } else {
    scan.key.push_back(kOther);
  }
}

Scan scan_arguments(const OpInfo& info, c10::ArrayRef<IValue> args) {
  Scan scan;
  const bool reads_numbers = info.rule && info.rule->reads_numbers;
  for (const IValue& value : args) scan_argument(value, reads_numbers, scan);
  return scan;
}

uint64_t hash_of(const PlanCache::Key& key) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (uint64_t word : key) hash = (hash ^ word) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
  return hash;
}

void check_write(const OpInfo& info, const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return;
  const Meta* meta = meta_of(tensor);
  if (C10_LIKELY(!meta->rare)) return;
  const Rare& rare = *meta->rare;
  TESSERA_CHECK(!rare.detached_view && (!rare.base || rare.base->epoch == rare.base_epoch), "[", info.name,
                "] cannot write through a view whose elements had to be moved to other ranks (the view is ", meta->spec.str(),
                "): the write would not reach its base. Write into the base itself (index_put_, masked_fill_, copy_), or "
                "redistribute the base so that the view needs no communication.");
}

// The operand on the layout that the plan wants.
at::Tensor moved(RankState& state, const OpInfo& info, const CallPlan::OperandMove& action, const at::Tensor& tensor) {
  const Move& move = *action.move;
  if (!is_dtensor(tensor)) return run_move(state.ctx, move, tensor, info.name.c_str());
  Meta* meta = meta_of(tensor);
  if (meta->spec == move.to) return meta->local;  // another operand of this call was the same tensor
  if (move.from->has_partial) {
    // Merged once, however many operators read it: the same logical value stays in the tensor.
    meta->replace(run_move(state.ctx, move, meta->local, info.name.c_str()), move.to);
    return meta->local;
  }
  if (!move.communicates) return run_move(state.ctx, move, meta->local, info.name.c_str());
  const bool versioned = !tensor.is_inference();
  const uint32_t version = versioned ? tensor.unsafeGetTensorImpl()->version_counter().current_version() : 0;
  if (meta->rare && meta->rare->gathered_spec == move.to && meta->rare->gathered_version == version && versioned) {
    return meta->rare->gathered;
  }
  at::Tensor result = run_move(state.ctx, move, meta->local, info.name.c_str());
  if (versioned) {
    Rare& rare = meta->make_rare();
    rare.gathered_spec = move.to;
    rare.gathered = result;
    rare.gathered_version = version;
    state.gathered.add(MetaPtr::reclaim_copy(meta), static_cast<int64_t>(result.nbytes()));
  }
  return result;
}

at::Tensor wrap_output(const CallPlan::Output& output, at::Tensor local, const Origin* origin, const MetaPtr& base, RankState& state,
                       const OpInfo& info) {
  if (!local.defined()) return local;
  if (output.move) local = run_move(state.ctx, *output.move, local, info.name.c_str());
  auto meta = c10::make_intrusive<Meta>();
  meta->local = std::move(local);
  meta->spec = output.final_spec;
  meta->origin = origin;
  if (C10_UNLIKELY(output.detached_view || (output.is_view && base && base->spec->has_partial))) {
    Rare& rare = meta->make_rare();
    rare.base = base;
    rare.base_epoch = base ? base->epoch : 0;
    rare.detached_view = output.detached_view;
  }
  return wrap(std::move(meta));
}

void call_local(const OpInfo& info, const CallPlan& plan, Stack& stack) {
  LocalScope scope;
  if (plan.reshape) {
    const auto sizes = stack.back().toIntVector();
    stack.resize(stack.size() - (info.num_args() - 1));
    stack.back() = at::reshape(stack.back().toTensor(), sizes);
  } else if (plan.local) {
    plan.local(*plan.local_call, stack);
  } else {
    info.op.callBoxed(stack);
  }
}

void run_plan(RankState& state, const OpInfo& info, const CallPlan& plan, const Scan& scan, Stack& stack) {
  const size_t n = info.num_args();
  IValue* args = stack.data() + (stack.size() - n);

  for (const CallPlan::OperandMove& action : plan.moves) {
    IValue& arg = args[action.arg];
    const at::Tensor tensor = action.item < 0 ? arg.toTensor() : arg.toListRef()[action.item].toTensor();
    at::Tensor result = moved(state, info, action, tensor);
    if (!info.args[action.arg].written) replace_tensor(arg, action.item, std::move(result));
  }

  c10::SmallVector<at::Tensor, 2> written;
  MetaPtr base;
  for (size_t i = 0; i < n; ++i) {
    IValue& arg = args[i];
    if (arg.isTensor()) {
      const at::Tensor& tensor = arg.toTensor();
      if (info.args[i].written) {
        check_write(info, tensor);
        written.push_back(tensor);
      }
      if (is_dtensor(tensor)) {
        Meta* meta = meta_of(tensor);
        if (info.is_view && !base) base = MetaPtr::reclaim_copy(meta);
        at::Tensor local = meta->local;
        arg = IValue(std::move(local));
      }
    } else if (arg.isList()) {
      if (info.args[i].written) {
        for (const at::Tensor& tensor : arg.toTensorVector()) written.push_back(tensor);
      }
      for_each_tensor({arg}, [&](const at::Tensor& tensor, int, int item) {
        if (is_dtensor(tensor)) replace_tensor(arg, item, meta_of(tensor)->local);
      });
    }
  }
  for (const auto& [index, value] : plan.rewritten) args[index] = value;

  call_local(info, plan, stack);

  const size_t returns = info.num_returns();
  IValue* results = stack.data() + (stack.size() - returns);
  size_t next_output = 0, next_written = 0;
  for (size_t i = 0; i < returns; ++i) {
    IValue& result = results[i];
    if (plan.list_returns[i] >= 0) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& local : result.toTensorVector()) {
        list.push_back(wrap_output(plan.outputs[next_output++], local, scan.origin, base, state, info));
      }
      result = std::move(list);
    } else if (info.written_return[i] >= 0) {
      result = written[next_written++];
      ++next_output;
    } else if (result.isTensor()) {
      result = wrap_output(plan.outputs[next_output++], result.toTensor(), scan.origin, base, state, info);
    }
  }
}

[[noreturn]] void throw_outside(const OpInfo& info) {
  TESSERA_CHECK(false, "[", info.name, "] a DTensor was used outside of a rank: its communicators belong to the thread that "
                "run_ranks (or a launcher) started. Take full_tensor(x) inside and use the plain tensor outside.");
  throw std::logic_error("unreachable");
}

}  // namespace

int& LocalScope::depth() {
  static thread_local int depth = 0;
  return depth;
}

void replace_tensor(IValue& arg, int item, at::Tensor tensor) {
  if (item < 0) {
    arg = IValue(std::move(tensor));
  } else if (arg.isTensorList()) {
    auto copy = arg.toTensorList().copy();
    copy.set(item, std::move(tensor));
    arg = IValue(std::move(copy));
  } else {
    auto copy = arg.toOptionalTensorList().copy();
    copy.set(item, std::optional<at::Tensor>(std::move(tensor)));
    arg = IValue(std::move(copy));
  }
}

void dispatch(const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  Scan scan = scan_arguments(info, args);
  if (C10_UNLIKELY(scan.recorder != nullptr)) return scan.recorder->call(info.op, &stack);
  RankState* current = RankState::current();
  if (C10_UNLIKELY(!current)) throw_outside(info);
  RankState& state = *current;

  const auto node = torch::autograd::get_current_node();
  const CallPlan* forward = nullptr;
  if (node && !state.recomputing) {
    forward = state.forward_plans.find(node->sequence_nr());
    scan.key.push_back(reinterpret_cast<uint64_t>(forward));
  } else if (scan.parameter) {
    state.sites.note_read(scan.parameter);
  }
  state.ctx.current_op = info.name.c_str();
  if (C10_UNLIKELY(state.check_plain && scan.has_plain)) check_plain_operands(state, info, args);
  if (SpecialKernel special = info.special) return special(state, info, stack);

  if (static_cast<size_t>(info.id) >= state.caches.size()) state.caches.resize(info.id + 64);
  const uint64_t hash = hash_of(scan.key);
  CallPlan* plan = state.caches[info.id].find(scan.key, hash);
  if (C10_UNLIKELY(!plan)) {
    auto made = make_call_plan(state, info, args, forward);
    plan = state.caches[info.id].insert(scan.key, hash, std::move(made));
  }
  if (C10_UNLIKELY(plan->decompose != nullptr)) return plan->decompose(info.op, stack);

  state.ctx.program.note(info.name.c_str(), plan->program_key);
  run_plan(state, info, *plan, scan, stack);
  state.forward_plans.record(at::sequence_number::peek() - 1, plan);
}

}  // namespace tessera::dtensor
