#include "tessera/parallel/forward_pass.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/state/observer.h"

namespace tessera::parallel {
namespace {

using dtensor::RankState;
using layout::Placements;

}  // namespace

ForwardPasses::ForwardPasses(plan::Plan plan, int64_t micro_batches, Batch rows)
    : plan_(std::move(plan)), micro_batches_(micro_batches), rows_(rows), step_(plan_) {
  plan_.verify_axes();
  TESSERA_CHECK(micro_batches >= 1, "[forward] a step of ", micro_batches, " micro-batches; accepted: at least 1");
}

ForwardPasses ForwardPasses::of_copy() const {
  ForwardPasses copy(plan_, micro_batches_, rows_);
  copy.passes_ = passes_, copy.evaluations_ = evaluations_, copy.calls_ = calls_;
  return copy;
}

int64_t ForwardPasses::step() const {
  TESSERA_CHECK(passes_ % micro_batches_ == 0, "[forward] ", passes_ % micro_batches_, " of the ", micro_batches_,
                " micro-batches of a step have passed, whose gradients would be lost; accepted: to save after a step");
  return passes_ / micro_batches_;
}

void ForwardPasses::set_step(int64_t step) {
  TESSERA_CHECK(step >= 0, "[forward] step ", step, "; accepted: one from 0 on");
  end();
  passes_ = step * micro_batches_, evaluations_ = 0;
}

void ForwardPasses::finish_step() {
  end();
  passes_ = (passes_ + micro_batches_ - 1) / micro_batches_ * micro_batches_;
}

int64_t ForwardPasses::give_step() {
  const int64_t given = step();
  end_checks();
  set_step(given + 1);
  return given;
}

void ForwardPasses::end_checks() {
  if (std::exchange(checks_operands_, false)) {
    RankState::require().watch.set_checks_plain(false);
  }
}

void ForwardPasses::check(const std::vector<dtensor::NamedValue>& batch) {
  end_checks();
  if (calls_.next()) {
    verify_same(batch);
    checks_operands_ = !RankState::require().watch.set_checks_plain(true);
  }
}

void ForwardPasses::verify_same(const std::vector<dtensor::NamedValue>& batch) const {
  if (local_) {
    local_->verify_same(batch);
  } else {
    verify_same_batch(batch, plan_, "forward",
                      base::in_language("ForwardPasses(plan, micro_batches, Batch::kLocal)",
                                        "tessera.parallelize(..., batch=\"local\")"));
  }
}

StepOptions ForwardPasses::next_step() {
  evaluations_ = at::GradMode::is_enabled() ? 0 : evaluations_ + 1;
  return {.number = static_cast<uint64_t>(passes_ / micro_batches_),
          .evaluation = static_cast<uint64_t>(evaluations_),
          .passes_of_loop = micro_batches_,
          .backward = Backward::kAfterPass};
}

PassSamples ForwardPasses::next_samples(int64_t count) {
  if (!at::GradMode::is_enabled()) {
    return samples_of(plan_, count, count, 0);
  }
  notes_.note_idle("forward", plan_, count, count * micro_batches_);
  const int64_t index = passes_++ % micro_batches_;
  return samples_of(plan_, count, count * micro_batches_, count * index);
}

std::vector<at::Tensor> ForwardPasses::begin(const std::vector<dtensor::NamedValue>& batch) {
  end();
  local_.reset();
  if (is_local()) {
    local_.emplace(plan_, batch, "forward");
  }
  check(batch);
  if (const StepOptions step = next_step(); step_.options() != step) {
    step_.begin(step);
  }
  const auto first = std::find_if(batch.begin(), batch.end(), [](const auto& value) { return value.tensor.dim() > 0; });
  const int64_t longest = first == batch.end() ? 0 : first->tensor.size(0);
  samples_ = next_samples(local_ && local_->has_rows() ? local_->count() : longest);
  if (local_) {
    local_->deal(samples_.placements);
  }
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < batch.size(); ++i) {
    const at::Tensor& tensor = batch[i].tensor;
    result.push_back(
        distribute(tensor, local_ ? local_->are_rows(i)
                                  : tensor.defined() && tensor.dim() > 0 && tensor.size(0) == samples_.count));
  }
  step_.begin_pass(samples_);
  for (const at::Tensor& value : result) {
    dtensor::tell_given(RankState::require(), "batch", dtensor::unwrapped(value));
  }
  return result;
}

at::Tensor ForwardPasses::more_rows(const at::Tensor& rows) {
  const int64_t count = local_ ? local_->own_count() : samples_.count;
  TESSERA_CHECK(rows.dim() > 0 && rows.size(0) == count, "[forward] more rows of the last pass, of ", rows.sizes(),
                " (rank ", RankState::require().ctx.rank, "); accepted: tensors with its ", count,
                local_ ? " rows of this rank along dim 0" : " rows along dim 0");
  const at::Tensor result = distribute(rows, /*are_rows=*/true);
  dtensor::tell_given(RankState::require(), "batch", dtensor::unwrapped(result));
  return result;
}

void ForwardPasses::end() { step_.end_pass(); }

at::Tensor ForwardPasses::distribute(const at::Tensor& tensor, bool are_rows) const {
  if (!tensor.defined() || dtensor::is_dtensor(dtensor::unwrapped(tensor))) {
    return tensor;
  }
  if (!are_rows) {
    const Placements whole(static_cast<size_t>(plan_.mesh.ndim()));
    return placed(tensor, layout::Spec::contiguous(plan_.mesh, whole, tensor.sizes(), tensor.scalar_type()));
  }
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = samples_.count;
  const auto spec = spec_of(plan_.mesh, samples_, std::move(sizes), tensor, /*has_positions=*/tensor.dim() == 2);
  at::Tensor result = local_ ? local_->place(tensor, spec) : placed(tensor, spec);
  dtensor::meta_of(dtensor::unwrapped(result))->origin = samples_.origin;
  return result;
}

at::Tensor ForwardPasses::placed(const at::Tensor& tensor, const layout::Spec& spec) const {
  const bool has_gradient = at::GradMode::is_enabled() && tensor.requires_grad();
  if (!has_gradient && dtensor::unwrapped(tensor).is_same(tensor)) {
    return dtensor::distribute(tensor, spec->mesh, spec->placements, spec->labels);
  }
  return dtensor::call_redistribute(dtensor::call_from_plain(tensor, spec.with(Placements(spec->placements.size()))),
                                    spec);
}

}  // namespace tessera::parallel
