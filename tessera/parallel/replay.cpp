#include <map>
#include <set>

#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/random/random_ops.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/kernels/base/threads.h"
#include "tessera/parallel/cut_view.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/tape.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::parallel {

namespace {

using c10::IValue;
using dtensor::RankState;
using layout::Placements;
using layout::Spec;
using torch::jit::Stack;

// While it lives the program is, for random numbers, where it was when the call was recorded.
class Rewound {
 public:
  Rewound(RankState& state, const std::optional<dtensor::ProgramPoint>& then) : state_(state) {
    if (then) {
      here_ = state.point();
      state.go_to(*then);
    }
  }
  ~Rewound() {
    if (here_) {
      state_.go_to(*here_);
    }
  }
  Rewound(const Rewound&) = delete;
  Rewound& operator=(const Rewound&) = delete;

 private:
  RankState& state_;
  std::optional<dtensor::ProgramPoint> here_;
};

// The same part under the strides of the one-device program, along which its random stream runs.
at::Tensor with_strides(const at::Tensor& tensor, const std::vector<int64_t>& strides) {
  const dtensor::Meta* meta = dtensor::meta_of(tensor);
  if (tensor.dim() != static_cast<int64_t>(strides.size())) {
    return tensor;
  }
  return dtensor::wrap(meta->local, Spec::make(meta->spec->mesh, meta->spec->placements, meta->spec->sizes, strides,
                                               meta->spec->dtype, meta->spec->labels));
}

// Runs a tape on one rank's parts.
class Replay {
 public:
  Replay(const Tape& tape, const layout::Mesh& mesh)
      : tape_(tape), mesh_(mesh), state_(RankState::require()), values_(tape.sizes().size()) {}

  // The layout that a value should have from its factory on.
  void want(int64_t value, const Placements& placements) {
    wanted_[value] = placements;
    kept_.insert(value);
  }

  void run() {
    want_sources();
    const std::vector<size_t> last = last_uses();
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < tape_.calls().size(); ++i) {
      const Recorded& call = tape_.calls()[i];
      {
        const Rewound rewound(state_, call.point);
        run_call(call);
      }
      for (const Reference& reference : call.references) {
        release(reference.value, i, last);
      }
      for (int64_t value : call.results) {
        release(value, i, last);
      }
    }
  }

  at::Tensor value(int64_t index) {
    const auto view = views_.find(index);
    return view == views_.end() ? values_[index] : read(view->second);
  }

 private:
  void want_sources();
  std::vector<size_t> last_uses() const;
  void release(int64_t value, size_t now, const std::vector<size_t>& last);
  void run_call(const Recorded& call);
  bool run_view(const Recorded& call, const Stack& stack);
  at::Tensor factory(const Recorded& call, Stack stack);
  at::Tensor uniform_factory(const Spec& spec, std::optional<dtensor::Draw> draw, std::optional<at::Scalar> value);

  Placements placements_of(int64_t value) const {
    const auto wish = wanted_.find(value);
    return wish == wanted_.end() ? Placements(mesh_.ndim()) : wish->second;
  }

  const Tape& tape_;
  const layout::Mesh& mesh_;
  RankState& state_;
  std::vector<at::Tensor> values_;
  std::map<int64_t, CutView> views_;  // values along dims that ranks cut
  std::set<int64_t> copies_;          // other views of those: of a copy of their content
  std::map<int64_t, Placements> wanted_;
  std::set<int64_t> kept_;
};

// A value made element by element from others of its sizes (a cast, a copy, a scaling) passes its wish on; a transposed
// one with its dims exchanged.
void Replay::want_sources() {
  for (size_t i = tape_.calls().size(); i-- > 0;) {
    const Recorded& call = tape_.calls()[i];
    if (call.references.empty() || call.results.empty()) {
      continue;
    }
    const auto found = wanted_.find(call.results[0]);
    if (found == wanted_.end()) {
      continue;
    }
    Placements wish = found->second;
    const rules::Rule& row = rules::RuleTable::instance().row(call.op);
    const auto& sizes = tape_.sizes()[call.results[0]];
    if (row.view == rules::View::kTranspose) {
      const auto dim_of = [&](int arg) {
        return static_cast<int>((call.args[arg].toInt() + sizes.size()) % sizes.size());
      };
      const int a = dim_of(1), b = dim_of(2);
      wish = layout::with_dims(wish, [&](int64_t dim) { return dim == a ? b : dim == b ? a : dim; });
      wanted_.try_emplace(call.references[0].value, wish);
      continue;
    }
    if (!row.copies && !call.op.hasTag(at::Tag::pointwise)) {
      continue;
    }
    for (const Reference& reference : call.references) {
      if (tape_.sizes()[reference.value] == sizes) {
        wanted_.try_emplace(reference.value, wish);
      }
    }
  }
}

std::vector<size_t> Replay::last_uses() const {
  std::vector<size_t> last(values_.size(), 0);
  for (size_t i = 0; i < tape_.calls().size(); ++i) {
    for (const Reference& reference : tape_.calls()[i].references) {
      last[reference.value] = i;
    }
    for (int64_t value : tape_.calls()[i].results) {
      last[value] = std::max(last[value], i);
    }
  }
  return last;
}

void Replay::release(int64_t value, size_t now, const std::vector<size_t>& last) {
  if (last[value] > now || kept_.count(value)) {
    return;
  }
  values_[value] = at::Tensor();
  views_.erase(value);
}

// Views along a cut dim are only noted.
bool Replay::run_view(const Recorded& call, const Stack& stack) {
  const int64_t source = call.references[0].value;
  if (call.references[0].arg != 0) {
    return false;
  }
  const auto known = views_.find(source);
  const CutView of = known != views_.end() ? known->second : CutView::whole(values_[source]);
  const auto taken = take_views(rules::RuleTable::instance().row(call.op).view, stack, of);
  if (!taken) {
    return false;
  }
  for (size_t i = 0; i < taken->size(); ++i) {
    views_.insert_or_assign(call.results.at(i), taken->at(i));
  }
  return true;
}

void Replay::run_call(const Recorded& call) {
  Stack stack(call.args.begin(), call.args.end());
  if (call.references.empty()) {
    values_[call.results.at(0)] = factory(call, stack);
    return;
  }
  if (run_view(call, stack)) {
    return;
  }
  std::vector<std::pair<const CutView*, at::Tensor>> written;
  for (const Reference& reference : call.references) {
    at::Tensor tensor = value(reference.value);
    if (call.point && call.point->random.stock() && reference.arg == 0 && views_.count(reference.value)) {
      tensor = with_strides(tensor, call.strides);
    }
    dtensor::replace_tensor(stack[reference.arg], reference.item, tensor);
    const auto view = views_.find(reference.value);
    const c10::AliasInfo* alias = call.op.schema().arguments()[reference.arg].alias_info();
    const bool writes = alias && alias->isWrite();
    TESSERA_CHECK(!writes || !copies_.count(reference.value), "[parallelize] the constructor writes (",
                  call.op.schema().name(),
                  ") to a view of a view along "
                  "a dim that ranks cut. Write to the tensor itself, or to a select, slice, chunk or unbind of it.");
    if (view != views_.end() && writes) {
      written.emplace_back(&view->second, tensor);
    }
    if ((view != views_.end() || copies_.count(reference.value)) && alias && !writes) {
      copies_.insert(call.results.begin(), call.results.end());
    }
  }
  call.op.callBoxed(stack);
  for (const auto& [view, content] : written) {
    write(*view, content);
  }
  size_t next = 0;
  const auto keep = [&](const at::Tensor& tensor) {
    const int64_t result = call.results[next++];
    if (!views_.count(result)) {
      values_[result] = tensor;
    }
  };
  for (const IValue& result : stack) {
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) {
        keep(tensor);
      }
    } else if (result.isTensor() && result.toTensor().defined()) {
      keep(result.toTensor());
    }
  }
}

// Factories whose elements are all alike (or drawn) are made part by part; the others whole, then cut.
at::Tensor Replay::factory(const Recorded& call, Stack stack) {
  const at::Tensor meta = run_on_meta(call, {}).back().toTensor();
  const Spec spec =
      Spec::make(mesh_, placements_of(call.results.at(0)), meta.sizes(), meta.strides(), meta.scalar_type());
  const rules::Rule& row = rules::RuleTable::instance().row(call.op);
  if (auto draw = dtensor::draw_of(state_, row.draws, stack, meta.scalar_type())) {
    return uniform_factory(spec, std::move(draw), std::nullopt);
  }
  switch (row.makes) {
    case rules::Makes::kNothing: return uniform_factory(spec, std::nullopt, std::nullopt);
    case rules::Makes::kZeros: return uniform_factory(spec, std::nullopt, at::Scalar(0));
    case rules::Makes::kOnes: return uniform_factory(spec, std::nullopt, at::Scalar(1));
    case rules::Makes::kNumber: return uniform_factory(spec, std::nullopt, stack[1].toScalar());
    case rules::Makes::kValues: break;
  }
  const auto region = state_.pass.set_region(std::nullopt);
  call.op.callBoxed(stack);
  state_.pass.set_region(region);
  return dtensor::distribute(stack.back().toTensor(), mesh_, spec->placements);
}

at::Tensor Replay::uniform_factory(const Spec& spec, std::optional<dtensor::Draw> draw,
                                   std::optional<at::Scalar> value) {
  at::Tensor local;
  {
    dtensor::LocalScope scope;
    local = at::empty(spec.local_sizes(state_.ctx.coord(mesh_)), at::TensorOptions().dtype(spec->dtype));
    if (value) {
      local.fill_(*value);
    }
  }
  if (draw) {
    dtensor::fill_local(state_, local, spec, nullptr, std::move(*draw));
  }
  return dtensor::wrap(std::move(local), spec);
}

}  // namespace

void materialize(const layout::Mesh& mesh, const std::vector<Materialization>& tensors) {
  const kernels::OneThread one_thread;  // the values must not depend on who shares the cores (Note [Threads])
  std::vector<std::shared_ptr<dtensor::Recorder>> tapes;
  for (const Materialization& each : tensors) {
    if (!is_deferred(each.tensor)) {
      continue;
    }
    const auto& tape = dtensor::meta_of(each.tensor)->rare->recorder;
    if (std::find(tapes.begin(), tapes.end(), tape) == tapes.end()) {
      tapes.push_back(tape);
    }
  }
  for (const auto& tape : tapes) {
    Replay replay(static_cast<const Tape&>(*tape), mesh);
    std::vector<const Materialization*> own;
    for (const Materialization& each : tensors) {
      if (is_deferred(each.tensor) && dtensor::meta_of(each.tensor)->rare->recorder == tape) {
        own.push_back(&each);
      }
    }
    for (const Materialization* each : own) {
      replay.want(value_of(each->tensor), each->placements);
    }
    replay.run();
    for (const Materialization* each : own) {
      at::Tensor made = replay.value(value_of(each->tensor));
      if (dtensor::spec_of(made)->placements != each->placements) {
        made = dtensor::redistribute(made, each->placements);
      }
      dtensor::become(each->tensor, made);
    }
  }
}

}  // namespace tessera::parallel
