#include "tessera/parallel/held_gradients.h"

#include <algorithm>

#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::parallel {

namespace {

bool lies_alike(const at::Tensor& sum, const at::Tensor& gradient) {
  return dtensor::is_dtensor(sum) && dtensor::is_dtensor(gradient) &&
         dtensor::meta_of(sum)->spec == dtensor::meta_of(gradient)->spec;
}

// Whether the sum has memory of its own, and no more than it needs: a pass may give one tensor to several parameters,
// and cut what it merged for many of them.
bool is_alone(const at::Tensor& sum) {
  dtensor::Meta& meta = *dtensor::meta_of(sum);  // aliases share it
  const at::Storage& memory = meta.local.storage();
  return sum.use_count() == 1 && c10::raw::intrusive_ptr::use_count(&meta) == 1 && !meta.root && !meta.derived() &&
         memory.use_count() == 1 && memory.nbytes() == meta.local.nbytes();
}

}  // namespace

void HeldGradients::add(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined() && !add_part(i, gradients[i])) {
      sum_of(i) = sum_of(i).add(gradients[i]);
    }
  }
}

bool HeldGradients::add_part(size_t i, const at::Tensor& gradient) {
  at::Tensor& sum = sum_of(i);
  const bool adds = sum.defined() && !state_.exact.lattice() && lies_alike(sum, gradient);
  if (adds && is_alone(sum) && dtensor::add_late_to(dtensor::meta_of(sum)->local, *dtensor::meta_of(gradient))) {
    return true;
  }
  if (dtensor::is_dtensor(gradient)) {
    dtensor::run_late(state_, *dtensor::meta_of(gradient), "gradients of micro-batches");
  }
  if (!sum.defined()) {
    sum = gradient;
    return true;
  }
  if (!adds) {
    return false;
  }
  const at::NoGradGuard no_grad;
  const dtensor::LocalScope scope;
  dtensor::Meta& meta = *dtensor::meta_of(sum);
  const at::Tensor& part = dtensor::meta_of(gradient)->local;
  if (!is_alone(sum)) {
    sum = dtensor::wrap(meta.local.add(part), meta.spec, meta.origin);
  } else if (part.numel() > 0) {  // a parameter of another stage has none
    meta.local.add_(part);
  }
  return true;
}

at::Tensor& HeldGradients::sum_of(size_t i) {
  sums_.resize(std::max(sums_.size(), i + 1));
  return sums_[i];
}

}  // namespace tessera::parallel
