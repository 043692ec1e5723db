#include "tessera/dtensor/ops/kept_operand.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

#include "tessera/dtensor/record/gather_policy.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::ViewInfo;

// Whether a view of a parameter lacks cuts over which the parameter is gathered: asked of layouts, so that all ranks,
// also those of other stages, make the view again or none does.
bool lacks_cuts(const layout::Spec& view, const layout::Spec& stored, const GatherPolicy& policy) {
  return std::any_of(policy.read.begin(), policy.read.end(), [&](int64_t axis) {
    return stored->placements[axis].is_shard() && !view->placements[axis].is_shard();
  });
}

// How the tensor is made of a parameter that was gathered for it; null if it is not.
const ViewInfo* view_of_gathered(const at::Tensor& tensor) {
  if (!is_dtensor(tensor) || !meta_of(tensor)->parameter || !meta_of(tensor)->parameter->gather) {
    return nullptr;
  }
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (!view || !view->has_bw_view() || !view->get_backward_view().has_view_fn()) {
    return nullptr;
  }
  const at::Tensor& base = view->get_backward_view().base_;
  const Meta& meta = *meta_of(tensor);
  const bool is_gathered = is_dtensor(base) && meta_of(base)->parameter == meta.parameter &&
                           lacks_cuts(meta.spec, meta_of(base)->spec, *meta.parameter->gather);
  return is_gathered ? &view->get_backward_view() : nullptr;
}

}  // namespace

KeptOperand::KeptOperand(const at::Tensor& operand) {
  const ViewInfo* view = view_of_gathered(operand);
  saved_ = SavedVariable(view ? view->base_ : operand, /*is_output=*/false);
  view_ = view ? view->view_fn().clone_and_set() : nullptr;
}

at::Tensor KeptOperand::unpack() const {
  const at::Tensor saved = saved_.unpack();
  return view_ ? (*view_)(saved) : saved;
}

void KeptOperand::release() {
  saved_.reset_data();
  view_.reset();
}

std::optional<at::Tensor> layout_of_parameter(const at::Tensor& operand) {
  if (!is_dtensor(operand) || !meta_of(operand)->parameter) {
    return std::nullopt;
  }
  if (!view_of_gathered(operand)) {
    return operand;
  }
  const LocalScope scope;
  const Meta& meta = *meta_of(operand);
  const at::Tensor one = at::zeros({}, meta.local.options());
  const at::Tensor like = wrap(one.expand(meta.local.sizes()), meta.spec, meta.origin);
  meta_of(like)->parameter = meta.parameter;
  return like;
}

}  // namespace tessera::dtensor
