#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/parallel/deferred.h"

#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/registry.h"
#include "tessera/dtensor/random/stock.h"
#include "tessera/parallel/tape.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::parallel {

using c10::IValue;
using dtensor::Meta;
using dtensor::RankState;
using torch::jit::Stack;

int64_t value_of(const at::Tensor& tensor) { return dtensor::meta_of(tensor)->rare->recorded; }

namespace {

const rules::Rule& row_of(const c10::OperatorHandle& op) { return rules::RuleTable::instance().row(op); }

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

// A permutation has no meta kernel.
at::Tensor meta_permutation(const c10::FunctionSchema& schema, const Stack& args) {
  auto dtype = c10::ScalarType::Long;
  for (size_t i = 0; i < args.size(); ++i) {
    if (schema.arguments()[i].name() == "dtype" && !args[i].isNone()) {
      dtype = args[i].toScalarType();
    }
  }
  return at::detail::empty_strided_meta({args[0].toInt()}, {1}, dtype);
}

// Whether the result is the operand itself, otherwise seen or converted.
bool is_conversion(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const bool is_view = !schema.returns().empty() && schema.returns()[0].alias_info() != nullptr;
  return is_view || row_of(op).copies;
}

// What an operator that turns a tensor in place (t_, squeeze_) gives anew.
std::optional<c10::OperatorHandle> out_of_place(const c10::OperatorHandle& op) {
  if (row_of(op).special != rules::Special::kViewInPlace) {
    return std::nullopt;
  }
  c10::OperatorName name = op.operator_name();
  name.name.pop_back();
  const auto view = c10::Dispatcher::singleton().findSchema(name);
  return view && row_of(*view).view != rules::View::kNone ? view : std::nullopt;
}

}  // namespace

Stack run_on_meta(const Recorded& call, const std::vector<at::Tensor>& tensors) {
  dtensor::LocalScope scope;
  at::NoGradGuard no_grad;
  Stack stack(call.args.begin(), call.args.end());
  if (row_of(call.op).permutes) {
    return {meta_permutation(call.op.schema(), stack)};
  }
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < stack.size(); ++i) {
    if (arguments[i].name() == "device") {
      stack[i] = c10::Device(c10::kMeta);
    }
    if (arguments[i].name() == "pin_memory") {
      stack[i] = IValue();
    }
    if (stack[i].isTensor() && stack[i].toTensor().defined()) {
      stack[i] = meta_like(stack[i].toTensor());
    }
  }
  for (size_t i = 0; i < call.references.size(); ++i) {
    dtensor::replace_tensor(stack[call.references[i].arg], call.references[i].item, meta_like(tensors[i]));
  }
  const Stack args = stack;
  try {
    call.op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    // Some elementwise operators have no meta kernel outside of Python: their results are like their operand.
    if (!call.op.hasTag(at::Tag::pointwise) || !args.at(0).isTensor()) {
      throw;
    }
    return {args[0]};
  }
  return stack;
}

at::Tensor Tape::wrap_result(const at::Tensor& meta, Recorded& call) {
  const auto value = static_cast<int64_t>(sizes_.size());
  call.results.push_back(value);
  sizes_.push_back(meta.sizes().vec());
  return dtensor::wrap_deferred(meta, shared_from_this(), value);
}

void Tape::check_not_used(const c10::OperatorHandle& op, const std::vector<at::Tensor>& tensors) const {
  if (!is_closed_ || !at::GradMode::is_enabled() || is_conversion(op)) {
    return;
  }
  for (const at::Tensor& tensor : tensors) {
    TESSERA_CHECK(!tensor.requires_grad(), "[", op.schema().name(), "] a parameter of ", tensor.sizes(),
                  " from `deferred` is used before it has a value. "
                  "Call ",
                  base::in_library("parallelize(model, plan, optimizer)"),
                  base::in_language(" or place(*model, plan)", ""), " first.");
  }
}

// The tensor becomes the new view of its memory; other views of it stay what they are.
void Tape::record_turn(const c10::OperatorHandle& view, Stack* stack) {
  const at::Tensor tensor = stack->at(stack->size() - view.schema().arguments().size()).toTensor();
  record(view, stack);
  const at::Tensor turned = torch::jit::pop(*stack).toTensor();
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(turned.sizes(), turned.strides());
  dtensor::meta_of(tensor)->rare->recorded = value_of(turned);
  stack->push_back(tensor);
}

// Keeps the place in the program of a call that draws, and goes on to the next.
void Tape::note_draw(Recorded& call, const Stack& results) {
  RankState* state = RankState::current();
  if (!state || !call.op.hasTag(at::Tag::nondeterministic_seeded)) {
    return;
  }
  call.point = state->point();
  call.strides = results.back().toTensor().strides().vec();
  const at::Generator named = dtensor::named_generator(call.args);
  if (named.defined() || state->random.stock()) {
    dtensor::skip_recorded(*state, call.op, call.args, results.back().toTensor());
  }
  state->next_stream();
}

void Tape::record(const c10::OperatorHandle& op, Stack* stack) {
  if (const auto view = out_of_place(op)) {
    return record_turn(*view, stack);
  }
  const c10::FunctionSchema& schema = op.schema();
  const size_t n = schema.arguments().size();
  TESSERA_CHECK(row_of(op).special != rules::Special::kItem,
                "[deferred] the value of a tensor is read, which does not exist before parallelize "
                "(or place). In a constructor, compute it from numbers, initialise that tensor after parallelize, or "
                "build the model without `deferred`.");
  Recorded call{op, std::vector<IValue>(stack->end() - n, stack->end()), {}, {}, {}, {}};
  std::vector<at::Tensor> tensors, written;
  dtensor::for_each_tensor(call.args, [&](const at::Tensor& tensor, int arg, int item) {
    if (!is_deferred(tensor)) {
      return;
    }
    TESSERA_CHECK(dtensor::meta_of(tensor)->rare->recorder.get() == this, "[deferred] ", schema.name(),
                  " mixes tensors of two deferred blocks");
    call.references.push_back({arg, item, value_of(tensor)});
    tensors.push_back(tensor);
    const c10::AliasInfo* alias = schema.arguments()[arg].alias_info();
    if (alias && alias->isWrite()) {
      written.push_back(tensor);
    }
  });
  check_not_used(op, tensors);
  Stack results = run_on_meta(call, tensors);
  note_draw(call, results);
  for (const Reference& reference : call.references) {
    dtensor::replace_tensor(call.args[reference.arg], reference.item, at::Tensor());
  }
  stack->resize(stack->size() - n);

  size_t next_written = 0;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const IValue& result = results[results.size() - schema.returns().size() + i];
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    if (alias && alias->isWrite() && next_written < written.size()) {
      call.results.push_back(value_of(written[next_written]));
      stack->push_back(written[next_written++]);
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& meta : result.toTensorVector()) {
        list.push_back(wrap_result(meta, call));
      }
      stack->push_back(std::move(list));
    } else if (result.isTensor() && result.toTensor().defined()) {
      stack->push_back(wrap_result(result.toTensor(), call));
    } else {
      stack->push_back(result);
    }
  }
  calls_.push_back(std::move(call));
}

struct DeferredScope::State {
  std::shared_ptr<Tape> tape = std::make_shared<Tape>();
  std::shared_ptr<void> interception = dtensor::intercept_this_thread();
  dtensor::FactoryScope factories{tape.get()};
};

DeferredScope::DeferredScope() {
  dtensor::ensure_registered();
  state_ = std::make_unique<State>();
}

DeferredScope::~DeferredScope() { state_->tape->close(); }

bool is_deferred(const at::Tensor& tensor) {
  if (!dtensor::is_dtensor(tensor)) {
    return false;
  }
  const Meta* meta = dtensor::meta_of(tensor);
  return !meta->spec && meta->rare && meta->rare->recorder;
}

}  // namespace tessera::parallel
