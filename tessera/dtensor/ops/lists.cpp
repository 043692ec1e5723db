#include "tessera/dtensor/ops/lists.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/ops/list_call.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/dtensor/view/part_at.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Placements;
using torch::jit::Stack;

// Nothing has to happen before the part can be read.
bool is_ready(const Meta& meta) {
  return !meta.spec->has_partial &&
         !(meta.rare && (meta.rare->derived || meta.rare->pending || meta.rare->is_unfinished));
}

bool lie_alike(const Spec& a, const Spec& b) {
  return a == b || (a->mesh == b->mesh && a->placements == b->placements && a->sizes == b->sizes);
}

bool lie_alike(const at::Tensor& tensor, const at::Tensor& first) {
  return is_dtensor(tensor) && is_dtensor(first) && is_ready(*meta_of(tensor)) &&
         lie_alike(meta_of(tensor)->spec, meta_of(first)->spec);
}

size_t first_list(c10::ArrayRef<IValue> args) {
  const auto found = std::find_if(args.begin(), args.end(), [](const IValue& value) { return value.isTensorList(); });
  TESSERA_ASSERT(found != args.end());
  return found - args.begin();
}

// Whether the operator may take all parts as they are.
bool may_run_together(const RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args) {
  if (state.exact.lattice() || state.watch.observer() || info.row.special != rules::Special::kList) {
    return false;
  }
  const auto first = args[first_list(args)].toListRef();
  for (const IValue& value : args) {
    if (value.isTensor()) {
      const at::Tensor& single = value.toTensor();
      if (is_dtensor(single) && !(is_ready(*meta_of(single)) && meta_of(single)->spec->is_replicated)) {
        return false;
      }
    } else if (value.isTensorList()) {
      const auto list = value.toListRef();
      if (list.size() != first.size()) {
        return false;
      }
      for (size_t i = 0; i < list.size(); ++i) {
        if (!lie_alike(list[i].toTensor(), first[i].toTensor())) {
          return false;
        }
      }
    }
  }
  return true;
}

IValue local_list(const IValue& list) {
  c10::List<at::Tensor> locals;
  for (const IValue& item : list.toListRef()) {
    locals.push_back(is_dtensor(item.toTensor()) ? meta_of(item.toTensor())->local : item.toTensor());
  }
  return locals;
}

at::Tensor wrap_like(at::Tensor local, const Meta& like) {
  const layout::SpecData& spec = *like.spec;
  const auto dtype = local.scalar_type();
  return wrap(std::move(local),
              dtype == spec.dtype
                  ? like.spec
                  : Spec::make(spec.mesh, spec.placements, spec.sizes, spec.strides, dtype, spec.labels),
              like.origin);
}

void run_together(RankState& state, const OpInfo& info, Stack& stack) {
  const std::vector<MetaPtr> written = written_tensors(info, arguments_of(info, stack));
  for (const MetaPtr& meta : written) {
    check_writable(info, *meta);
  }
  const IValue first = arguments_of(info, stack)[first_list(arguments_of(info, stack))];
  IValue* args = stack.data() + (stack.size() - info.num_args());
  for (size_t i = 0; i < info.num_args(); ++i) {
    if (args[i].isTensorList()) {
      args[i] = local_list(args[i]);
    } else if (args[i].isTensor() && is_dtensor(args[i].toTensor())) {
      args[i] = IValue(meta_of(args[i].toTensor())->local);
    }
  }
  {
    LocalScope scope;
    info.op.callBoxed(stack);
  }
  for (const MetaPtr& meta : written) {
    note_write(*meta);
  }
  if (info.num_returns() == 0) {
    return;
  }
  c10::List<at::Tensor> results;
  const auto like = first.toListRef();
  for (at::Tensor local : stack.back().toTensorVector()) {
    results.push_back(wrap_like(std::move(local), *meta_of(like[results.size()].toTensor())));
  }
  stack.back() = std::move(results);
}

// The kernel that libtorch has for any device calls the one-tensor operator for each element. It stands at the key of a
// backend that nobody has.
void run_apart(const OpInfo& info, Stack& stack) {
  TESSERA_CHECK(info.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd), "[", info.name,
                "] has no form that goes tensor by tensor. Call the operator for each tensor.");
  info.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), &stack);
}

// Whether norms of the elements can be merged together: euclidean ones, of tensors that are ready, summed in any order.
bool may_merge_together(const RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args) {
  if (state.exact.lattice() || state.watch.observer() || info.row.special != rules::Special::kListNorm ||
      !args[1].toScalar().equal(2) || !args[2].isNone()) {
    return false;
  }
  const auto list = args[0].toListRef();
  return std::all_of(list.begin(), list.end(), [](const IValue& item) {
    return is_dtensor(item.toTensor()) && is_ready(*meta_of(item.toTensor()));
  });
}

// The norms of all elements: one reduction for each way in which tensors are cut.
void foreach_norm(RankState& state, const OpInfo& info, Stack& stack) {
  const std::vector<at::Tensor> list = arguments_of(info, stack)[0].toTensorVector();
  struct Group {
    Spec sums;
    std::vector<size_t> members;
  };
  std::vector<Group> groups;
  for (size_t i = 0; i < list.size(); ++i) {
    const Spec& spec = meta_of(list[i])->spec;
    const auto wide = spec->dtype == c10::kDouble ? c10::kDouble : c10::kFloat;
    const Spec sums = Spec::contiguous(spec->mesh, layout::sum_of_parts(spec->placements), {}, wide);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) { return other.sums == sums; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {sums, {}});
    }
    group->members.push_back(i);
  }
  std::vector<at::Tensor> norms(list.size());
  for (const Group& group : groups) {
    LocalScope scope;
    std::vector<at::Tensor> squares;
    for (size_t i : group.members) {
      squares.push_back(at::linalg_vector_norm(meta_of(list[i])->local, 2, {}, false, group.sums->dtype).square());
    }
    const layout::Mesh& mesh = group.sums->mesh;
    const at::Tensor parts =
        wrap(at::stack(squares),
             Spec::contiguous(mesh, group.sums->placements, {static_cast<int64_t>(squares.size())}, group.sums->dtype));
    const std::vector<at::Tensor> merged = part_at(state, info, parts, Placements(mesh.ndim())).sqrt().unbind();
    for (size_t k = 0; k < merged.size(); ++k) {
      const auto dtype = list[group.members[k]].scalar_type();
      norms[group.members[k]] =
          wrap(merged[k].to(dtype).clone(), Spec::contiguous(mesh, Placements(mesh.ndim()), {}, dtype));
    }
  }
  torch::jit::drop(stack, info.num_args());
  stack.emplace_back(std::move(norms));
}

}  // namespace

void foreach_call(RankState& state, const OpInfo& info, Stack& stack) {
  const auto args = arguments_of(info, stack);
  if (may_run_together(state, info, args)) {
    note_list_call(state, info, args);
    run_together(state, info, stack);
  } else if (may_merge_together(state, info, args)) {
    note_list_call(state, info, args);
    foreach_norm(state, info, stack);
  } else {
    run_apart(info, stack);
  }
}

void unscale(RankState& state, const OpInfo& info, Stack& stack) {
  const std::vector<IValue> args = arguments_of(info, stack).vec();
  note_list_call(state, info, args);
  const std::vector<MetaPtr> gradients = written_tensors(info, {args[0]});
  for (const at::Tensor& gradient : args[0].toTensorVector()) {
    if (is_dtensor(gradient)) {
      part_at(state, info, gradient, without_partial(meta_of(gradient)->spec->placements));
    }
  }
  for (const MetaPtr& meta : gradients) {
    check_writable(info, *meta);
  }

  const at::Tensor found_inf = args[1].toTensor(), inverse = args[2].toTensor();
  at::Tensor found;
  IValue* locals = stack.data() + (stack.size() - info.num_args());
  {
    LocalScope scope;
    found = at::zeros_like(is_dtensor(found_inf) ? meta_of(found_inf)->local : found_inf);
    locals[0] = local_list(args[0]);
    locals[1] = found;
    if (is_dtensor(inverse)) {
      locals[2] = part_at(state, info, inverse, Placements(meta_of(inverse)->spec->mesh.ndim()));
    }
    info.op.callBoxed(stack);
  }
  for (const MetaPtr& meta : gradients) {
    note_write(*meta);
  }
  if (gradients.empty()) {
    found_inf.copy_(at::maximum(found_inf, found));
    return;
  }
  const layout::Mesh& mesh = gradients.front()->spec->mesh;
  const Placements anywhere(mesh.ndim(), layout::Partial(layout::ReduceOp::kMax));
  const at::Tensor anywhere_found =
      wrap(found, Spec::make(mesh, anywhere, found.sizes(), found.strides(), found.scalar_type()));
  found_inf.copy_(at::maximum(found_inf, part_at(state, info, anywhere_found, Placements(mesh.ndim()))));
}

}  // namespace tessera::dtensor
