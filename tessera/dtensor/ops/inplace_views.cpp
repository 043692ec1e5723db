#include "tessera/dtensor/ops/inplace_views.h"

#include <algorithm>

#include <ATen/ops/_conj_physical.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::autograd::ViewFunc;
using torch::autograd::ViewInfo;
using torch::jit::Stack;
using Args = std::vector<IValue>;

// The call as a step of what is replayed in backward.
class Step final : public ViewFunc {
 public:
  Step(std::unique_ptr<ViewFunc> before, const OpInfo& op, Args args)
      : before_(std::move(before)), op_(op), args_(std::move(args)) {}

  at::Tensor operator()(const at::Tensor& base) const override {
    Stack stack = {(*before_)(base)};
    stack.insert(stack.end(), args_.begin(), args_.end());
    op_.op.callBoxed(stack);
    return stack.back().toTensor();
  }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<Step>(before_->clone_and_set(), op_, args_);
  }

 private:
  std::unique_ptr<ViewFunc> before_;
  const OpInfo& op_;
  Args args_;
};

const torch::autograd::DifferentiableViewMeta* view_meta_of(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta && meta->has_bw_view() ? meta : nullptr;
}

// libtorch gives this record out as it was made, for reading: where strides rebuild a view, a view in place needs no
// other.
void add_step(const ViewInfo& info, const OpInfo& op, const Args& args) {
  std::unique_ptr<ViewFunc>& replayed = const_cast<ViewInfo&>(info).view_fn_;
  if (replayed) {
    replayed = std::make_unique<Step>(std::move(replayed), op, args);
  }
}

const OpInfo& view_of(const rules::Rule& row) {
  const OpInfo* view = find_op(row.becomes);
  TESSERA_ASSERT(view && view->is_view, row.becomes);
  return *view;
}

// Above autograd, on every tensor of a rank: views are replayed for plain tensors too.
void replayed_in_place(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t begin = stack->size() - op.schema().arguments().size();
  const at::Tensor self = (*stack)[begin].toTensor();
  const Args args(stack->begin() + static_cast<int64_t>(begin) + 1, stack->end());
  {
    LocalScope scope;  // t_ calls transpose_, which calls as_strided_: one step
    call_below(op, keys, stack);
  }
  const auto* how = view_meta_of(self);
  if (!how) {
    return;
  }
  const OpInfo& view = view_of(rules::RuleTable::instance().row(op));
  add_step(how->get_backward_view(), view, args);
  if (!how->shared_view_info() && how->has_fw_view()) {
    add_step(how->get_forward_view(), view, args);
  }
}

bool can_have_gradient(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

// Throws if the tensor has views that would be replayed from other sizes than they were made from.
void check_no_views(const RankState& state, const OpInfo& info, const OpInfo& view, const at::Tensor& self) {
  const bool may_have_views = meta_of(self)->memory().has_views && !self.unsafeGetTensorImpl()->unique_version();
  TESSERA_CHECK(!may_have_views || !can_have_gradient(self) || view_meta_of(self), "[", info.name,
                "] other tensors are views of this one, ", meta_of(self)->spec.str(), " (rank ", state.ctx.rank,
                "): their gradients would be taken for the sizes that it has afterwards. Use ", view.name,
                ", which gives a new tensor and leaves this one as it is.");
}

}  // namespace

void view_in_place(RankState& state, const OpInfo& info, Stack& stack) {
  const OpInfo& view = view_of(info.row);
  const at::Tensor self = stack[stack.size() - info.num_args()].toTensor();
  check_no_views(state, info, view, self);
  dispatch(view, stack);
  const at::Tensor made = stack.back().toTensor();
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(made.sizes(), made.strides());  // throws, as on one device, for x.data
  impl->set_backend_meta(MetaPtr::reclaim_copy(meta_of(made)));
  Meta& meta = *meta_of(self);
  if (const Derived* derived = meta.derived(); derived && !derived->shares_memory) {
    drop_unseen_base(meta);
  }
  if (!view_meta_of(self)) {
    meta.memory().has_views = false;  // but for the tensor itself
  }
  stack.back() = self;
}

void conjugate(RankState& state, const OpInfo& info, Stack& stack) {
  const at::Tensor self = stack.back().toTensor();
  const at::Tensor made = at::_conj_physical(self);
  meta_of(self)->memory().has_views = true;
  record_view(*meta_of(made), MetaPtr::reclaim_copy(meta_of(self)), info, {}, /*output=*/0, /*shares_memory=*/false);
  stack.back() = made;
}

void register_views_in_place(KernelRegistry& registry) {
  registry.intercept_if<&replayed_in_place>(
      [](const rules::Rule& row) { return row.special == rules::Special::kViewInPlace; });
}

}  // namespace tessera::dtensor
