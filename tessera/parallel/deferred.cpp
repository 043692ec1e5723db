#include "tessera/parallel/deferred.h"

#include <map>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/plain.h"
#include "tessera/dtensor/random_ops.h"
#include "tessera/dtensor/registry.h"

namespace tessera::parallel {

namespace {

using c10::IValue;
using dtensor::Meta;
using dtensor::Spec;
using layout::Placements;
using torch::jit::Stack;

// A tensor among the arguments of a recorded call: a value of the tape, or a plain tensor (kept in the arguments).
struct Reference {
  int arg = 0;
  int item = -1;
  int64_t value = 0;
};

struct Recorded {
  c10::OperatorHandle op;
  std::vector<IValue> args;           // without the tape's own tensors
  std::vector<Reference> references;
  std::vector<int64_t> results;       // values, in the order of the results; a value written in place stands again
};

// What one `deferred` block did, in order.
class Tape final : public dtensor::Recorder, public dtensor::FactoryHook, public std::enable_shared_from_this<Tape> {
 public:
  void make(const c10::OperatorHandle& op, Stack* stack) override { record(op, stack); }
  void call(const c10::OperatorHandle& op, Stack* stack) override { record(op, stack); }

  const std::vector<Recorded>& calls() const { return calls_; }
  int64_t values() const { return values_; }

 private:
  void record(const c10::OperatorHandle& op, Stack* stack);
  at::Tensor wrap_result(const at::Tensor& meta, Recorded& call);

  std::vector<Recorded> calls_;
  int64_t values_ = 0;
};

int64_t value_of(const at::Tensor& tensor) { return dtensor::meta_of(tensor)->rare->recorded; }

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

// The recorded call on meta tensors: shapes, and errors at the line that made them.
Stack run_on_meta(const Recorded& call, const std::vector<at::Tensor>& tensors) {
  c10::impl::ExcludeDispatchKeyGuard no_interception(c10::DispatchKey::DeferredInit);
  at::NoGradGuard no_grad;
  Stack stack(call.args.begin(), call.args.end());
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < stack.size(); ++i) {
    if (arguments[i].name() == "device") stack[i] = c10::Device(c10::kMeta);
    if (arguments[i].name() == "pin_memory") stack[i] = IValue();
    if (stack[i].isTensor() && stack[i].toTensor().defined()) stack[i] = meta_like(stack[i].toTensor());
  }
  for (size_t i = 0; i < call.references.size(); ++i) {
    dtensor::replace_tensor(stack[call.references[i].arg], call.references[i].item, meta_like(tensors[i]));
  }
  call.op.callBoxed(stack);
  return stack;
}

at::Tensor Tape::wrap_result(const at::Tensor& meta, Recorded& call) {
  call.results.push_back(values_);
  return dtensor::wrap_deferred(meta, shared_from_this(), values_++);
}

void Tape::record(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t n = schema.arguments().size();
  TESSERA_CHECK(schema.name() != "aten::_local_scalar_dense", "[deferred] a constructor reads a tensor's value, which does not exist yet. Build the "
                "model without `deferred`, or compute the value from numbers.");
  Recorded call{op, std::vector<IValue>(stack->end() - n, stack->end()), {}, {}};
  std::vector<at::Tensor> tensors, written;
  dtensor::for_each_tensor(call.args, [&](const at::Tensor& tensor, int arg, int item) {
    if (!is_deferred(tensor)) return;
    TESSERA_CHECK(dtensor::meta_of(tensor)->rare->recorder.get() == this, "[deferred] ", schema.name(), " mixes tensors of two deferred blocks");
    call.references.push_back({arg, item, value_of(tensor)});
    tensors.push_back(tensor);
    const c10::AliasInfo* alias = schema.arguments()[arg].alias_info();
    if (alias && alias->isWrite()) written.push_back(tensor);
  });
  Stack results = run_on_meta(call, tensors);
  for (const Reference& reference : call.references) dtensor::replace_tensor(call.args[reference.arg], reference.item, at::Tensor());
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
      for (const at::Tensor& meta : result.toTensorVector()) list.push_back(wrap_result(meta, call));
      stack->push_back(std::move(list));
    } else if (result.isTensor() && result.toTensor().defined()) {
      stack->push_back(wrap_result(result.toTensor(), call));
    } else {
      stack->push_back(result);
    }
  }
  calls_.push_back(std::move(call));
}

// Runs a tape on one rank's parts.
class Replay {
 public:
  Replay(const Tape& tape, const layout::Mesh& mesh) : tape_(tape), mesh_(mesh), state_(dtensor::RankState::require()), values_(tape.values()) {}

  // The layout that a value should have from its factory on.
  void want(int64_t value, const Placements& placements) {
    wanted_[value] = placements;
    kept_[value] = true;
  }

  void run() {
    want_sources();
    const std::vector<size_t> last = last_uses();
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < tape_.calls().size(); ++i) {
      run_call(tape_.calls()[i]);
      for (const Reference& reference : tape_.calls()[i].references) release(reference.value, i, last);
      for (int64_t value : tape_.calls()[i].results) release(value, i, last);
    }
  }

  const at::Tensor& value(int64_t index) const { return values_[index]; }

 private:
  // A value made from another of the same size (a cast, a copy) passes its wish on.
  void want_sources() {
    for (size_t i = tape_.calls().size(); i-- > 0;) {
      const Recorded& call = tape_.calls()[i];
      const std::string& name = call.op.schema().name();
      if (name != "aten::_to_copy" && name != "aten::clone" && name != "aten::detach" && name != "aten::alias") continue;
      const auto wish = wanted_.find(call.results.at(0));
      if (wish != wanted_.end() && !call.references.empty()) wanted_.try_emplace(call.references[0].value, wish->second);
    }
  }

  std::vector<size_t> last_uses() const {
    std::vector<size_t> last(tape_.values(), 0);
    for (size_t i = 0; i < tape_.calls().size(); ++i) {
      for (const Reference& reference : tape_.calls()[i].references) last[reference.value] = i;
      for (int64_t value : tape_.calls()[i].results) last[value] = std::max(last[value], i);
    }
    return last;
  }

  void release(int64_t value, size_t now, const std::vector<size_t>& last) {
    if (last[value] <= now && !kept_.count(value)) values_[value] = at::Tensor();
  }

  void run_call(const Recorded& call) {
    Stack stack(call.args.begin(), call.args.end());
    if (call.references.empty()) {
      values_[call.results.at(0)] = factory(call, stack);
      return;
    }
    for (const Reference& reference : call.references) dtensor::replace_tensor(stack[reference.arg], reference.item, values_[reference.value]);
    call.op.callBoxed(stack);
    size_t next = 0;
    for (const IValue& result : stack) {
      if (result.isTensorList()) {
        for (const at::Tensor& tensor : result.toTensorVector()) values_[call.results[next++]] = tensor;
      } else if (result.isTensor() && result.toTensor().defined()) {
        values_[call.results[next++]] = result.toTensor();
      }
    }
  }

  Placements placements_of(int64_t value) const {
    const auto wish = wanted_.find(value);
    return wish == wanted_.end() ? Placements(mesh_.ndim()) : wish->second;
  }

  // Factories whose elements are all alike (or drawn) are made part by part; the others whole, then cut.
  at::Tensor factory(const Recorded& call, Stack stack) {
    const at::Tensor meta = run_on_meta(call, {}).back().toTensor();
    const Spec spec = Spec::make(mesh_, placements_of(call.results.at(0)), meta.sizes(), meta.strides(), meta.scalar_type());
    const std::string& name = call.op.schema().name();
    const auto drawn = dtensor::factory_distribution(c10::toString(call.op.operator_name()), stack);
    if (drawn || name == "aten::empty" || name == "aten::empty_strided") return uniform_factory(spec, drawn, std::nullopt);
    if (name == "aten::zeros") return uniform_factory(spec, std::nullopt, at::Scalar(0));
    if (name == "aten::ones") return uniform_factory(spec, std::nullopt, at::Scalar(1));
    if (name == "aten::full") return uniform_factory(spec, std::nullopt, stack[1].toScalar());
    const auto region = std::exchange(state_.region, std::nullopt);
    call.op.callBoxed(stack);
    state_.region = region;
    return dtensor::distribute(stack.back().toTensor(), mesh_, spec->placements);
  }

  at::Tensor uniform_factory(const Spec& spec, const std::optional<random::Distribution>& drawn, std::optional<at::Scalar> value) {
    at::Tensor local;
    {
      dtensor::LocalScope scope;
      local = at::empty(spec.local_sizes(state_.ctx.coord(mesh_)), at::TensorOptions().dtype(spec->dtype));
      if (value) local.fill_(*value);
    }
    if (drawn) dtensor::fill_local(state_, local, spec, nullptr, state_.sites.next(), *drawn);
    return dtensor::wrap(std::move(local), spec);
  }

  const Tape& tape_;
  const layout::Mesh& mesh_;
  dtensor::RankState& state_;
  std::vector<at::Tensor> values_;
  std::map<int64_t, Placements> wanted_;
  std::map<int64_t, bool> kept_;
};

}  // namespace

struct DeferredScope::State {
  std::shared_ptr<Tape> tape = std::make_shared<Tape>();
  std::shared_ptr<void> interception = dtensor::intercept_this_thread();
  dtensor::FactoryScope factories{tape.get()};
};

DeferredScope::DeferredScope() {
  dtensor::ensure_registered();
  state_ = std::make_unique<State>();
}

DeferredScope::~DeferredScope() = default;

bool is_deferred(const at::Tensor& tensor) {
  if (!dtensor::is_dtensor(tensor)) return false;
  const Meta* meta = dtensor::meta_of(tensor);
  return !meta->spec && meta->rare && meta->rare->recorder;
}

void materialize(const layout::Mesh& mesh, const std::vector<Materialization>& tensors) {
  std::vector<std::shared_ptr<dtensor::Recorder>> tapes;
  for (const Materialization& each : tensors) {
    if (!is_deferred(each.tensor)) continue;
    const auto& tape = dtensor::meta_of(each.tensor)->rare->recorder;
    if (std::find(tapes.begin(), tapes.end(), tape) == tapes.end()) tapes.push_back(tape);
  }
  for (const auto& tape : tapes) {
    Replay replay(static_cast<const Tape&>(*tape), mesh);
    std::vector<const Materialization*> own;
    for (const Materialization& each : tensors) {
      if (is_deferred(each.tensor) && dtensor::meta_of(each.tensor)->rare->recorder == tape) own.push_back(&each);
    }
    for (const Materialization* each : own) replay.want(value_of(each->tensor), each->placements);
    replay.run();
    for (const Materialization* each : own) {
      at::Tensor made = replay.value(value_of(each->tensor));
      if (dtensor::spec_of(made)->placements != each->placements) made = dtensor::redistribute(made, each->placements);
      dtensor::become(each->tensor, made);
    }
  }
}

}  // namespace tessera::parallel
