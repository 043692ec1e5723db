#include "tessera/dtensor/ops/fused_update.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/ops/list_call.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/view/part_at.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Placements;
using torch::jit::Stack;

// One fused step of an optimizer.
class FusedUpdate {
 public:
  FusedUpdate(RankState& state, const OpInfo& info, Stack& stack)
      : state_(state), info_(info), stack_(stack), args_(arguments_of(info, stack).vec()) {}

  void run() {
    note_list_call(state_, info_, args_);
    const std::vector<MetaPtr> written = written_tensors(info_, args_);
    for (const MetaPtr& meta : written) {
      check_writable(info_, *meta);
    }
    for (size_t place = 0; place < args_[0].toListRef().size(); ++place) {
      if (takes_part(place)) {
        places_.push_back(place);
      }
    }
    IValue* locals = stack_.data() + (stack_.size() - info_.num_args());
    for (size_t i = 0; i < args_.size(); ++i) {
      if (args_[i].isTensorList()) {
        locals[i] = local_column(i);
      } else if (args_[i].isTensor() && is_dtensor(args_[i].toTensor())) {
        locals[i] = whole(args_[i].toTensor());
      }
    }
    if (!places_.empty()) {
      call_on_parts();
    }
    for (auto& [part, copy] : copied_) {
      part.copy_(copy);
    }
    for (const MetaPtr& meta : written) {
      note_write(*meta);
    }
    for (auto& [tensor, value] : elsewhere_) {
      tensor.copy_(value);
    }
  }

 private:
  static constexpr size_t kGradients = 1;  // the argument after the parameters

  // Whether this rank has anything to do at this place of the lists: not for a parameter of another stage, with all
  // that belongs to it.
  bool takes_part(size_t place) const {
    const at::Tensor& parameter = args_[0].toListRef()[place].toTensor();
    if (!is_dtensor(parameter) || state_.has_part(meta_of(parameter)->spec)) {
      return true;
    }
    return std::any_of(args_.begin(), args_.end(), [&](const IValue& arg) {
      return arg.isTensorList() && !arg.toListRef().empty() && !lies_with(arg.toListRef()[place].toTensor(), parameter);
    });
  }

  // ... or is a step count, the same everywhere.
  static bool lies_with(const at::Tensor& tensor, const at::Tensor& parameter) {
    if (!is_dtensor(tensor)) {
      return tensor.sizes() != parameter.sizes();
    }
    const Spec& spec = meta_of(tensor)->spec;
    return tensor.sizes() == parameter.sizes() ? spec->placements == meta_of(parameter)->spec->placements
                                               : spec->is_replicated;
  }

  void call_on_parts() {
    const LocalScope scope;
    const kernels::AllThreads threads;  // elements are apart
    if (state_.exact.lattice() && info_.row.exact->local) {
      rules::LocalCall call;
      call.op = &info_.op;
      info_.row.exact->local(call, stack_);
    } else {
      info_.op.callBoxed(stack_);
    }
  }

  at::Tensor whole(const at::Tensor& tensor) {
    return part_at(state_, info_, tensor, Placements(meta_of(tensor)->spec->mesh.ndim()));
  }

  c10::List<at::Tensor> local_column(size_t arg) {
    const auto parameters = args_[0].toListRef();
    const bool written = writes(arg);
    const auto items = args_[arg].toListRef();
    c10::List<at::Tensor> locals;
    for (size_t k = 0; k < places_.size() && !items.empty(); ++k) {
      const size_t place = places_[k];
      locals.push_back(local(items[place].toTensor(), parameters[place].toTensor(), arg, written));
    }
    return locals;
  }

  // The part of what belongs to `parameter`, where the parameter is.
  at::Tensor local(const at::Tensor& tensor, const at::Tensor& parameter, size_t arg, bool written) {
    if (is_dtensor(tensor) && is_dtensor(parameter) && tensor.dim() > 0 && tensor.sizes() != parameter.sizes()) {
      return meta_of(tensor)->local;
    }
    if (!is_dtensor(parameter) || tensor.sizes() != parameter.sizes()) {
      return single(tensor, parameter);  // a step count
    }
    const Spec& spec = meta_of(parameter)->spec;
    if (!is_dtensor(tensor)) {
      return part_of_plain(tensor, parameter, arg, written);
    }
    const bool was_partial = meta_of(tensor)->spec->has_partial;
    const at::Tensor found = part_at(state_, info_, tensor, spec->placements);
    if (written && !was_partial && !(meta_of(tensor)->spec->placements == spec->placements)) {
      elsewhere_.emplace_back(tensor, wrap(found, meta_of(tensor)->spec.with(spec->placements)));
    }
    return in_order(found, meta_of(parameter)->local, written);
  }

  // A plain tensor is the whole value on every rank; what a scaled step writes into a gradient goes back there.
  at::Tensor part_of_plain(const at::Tensor& tensor, const at::Tensor& parameter, size_t arg, bool written) {
    const Spec& spec = meta_of(parameter)->spec;
    TESSERA_CHECK(!written || spec->is_replicated || arg == kGradients, "[", info_.name,
                  "] cannot write the state of a parameter ", spec.str(),
                  " into a plain tensor: each rank would keep another part (rank ", state_.ctx.rank,
                  "). Make the state from the parameter (zeros_like), or let the optimizer make it.");
    const Spec from =
        Spec::make(spec->mesh, Placements(spec->mesh.ndim()), tensor.sizes(), tensor.strides(), tensor.scalar_type());
    const Spec to = from.with(spec->placements);
    const at::Tensor part =
        run_move(state_.ctx, *state_.engine.moves.find_or_plan(from, to), tensor, info_.name.c_str());
    if (written && !spec->is_replicated) {
      elsewhere_.emplace_back(tensor, wrap(part, to));
    }
    return in_order(part, meta_of(parameter)->local, written);
  }

  // Gradients are only read, unless the step divides them by a loss scale, in place.
  bool writes(size_t arg) const {
    if (arg != kGradients) {
      return info_.args[arg].written;
    }
    const auto& arguments = info_.op.schema().arguments();
    const auto scale = std::find_if(arguments.begin(), arguments.end(),
                                    [](const c10::Argument& argument) { return argument.name() == "grad_scale"; });
    return scale != arguments.end() && !args_[scale - arguments.begin()].isNone();
  }

  // The kernels walk along memory: the elements of all parts of one parameter must stand in one order, without gaps.
  at::Tensor in_order(const at::Tensor& part, const at::Tensor& parameter, bool written) {
    const bool is_dense = parameter.is_non_overlapping_and_dense();
    if (part.is_contiguous() && (parameter.is_contiguous() || !is_dense)) {
      return part;
    }
    LocalScope scope;
    at::Tensor copy = is_dense ? at::empty_strided(part.sizes(), parameter.strides(), part.options())
                               : at::empty(part.sizes(), part.options());
    if (is_dense && part.strides() == copy.strides()) {
      return part;
    }
    copy.copy_(part);
    if (written) {
      copied_.emplace_back(part, copy);
    }
    return copy;
  }

  // What is alike on every rank.
  at::Tensor single(const at::Tensor& tensor, const at::Tensor& parameter) {
    if (!is_dtensor(tensor)) {
      return tensor;
    }
    TESSERA_CHECK(
        is_dtensor(parameter) || meta_of(tensor)->spec->is_replicated, "[", info_.name, "] a plain parameter and ",
        meta_of(tensor)->spec.str(),
        " stand at one place of the lists: each rank would write another part. Make the parameter a DTensor.");
    return whole(tensor);
  }

  RankState& state_;
  const OpInfo& info_;
  Stack& stack_;
  const std::vector<IValue> args_;
  std::vector<size_t> places_;                                // of the lists, at which this rank has something to do
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;     // a written part, and the copy of it in another order
  std::vector<std::pair<at::Tensor, at::Tensor>> elsewhere_;  // a written tensor, and its value in another layout
};

}  // namespace

void fused_update(RankState& state, const OpInfo& info, Stack& stack) {
  TESSERA_CHECK(!state.exact.lattice() || info.row.exact, "[", info.name,
                "] numerics exact: this fused optimizer has no form whose bits do not depend on the layout (rank ",
                state.ctx.rank, "); accepted: fused=False, or fused AdamW, Adam and SGD");
  FusedUpdate(state, info, stack).run();
}

}  // namespace tessera::dtensor
