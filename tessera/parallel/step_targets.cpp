#include "tessera/parallel/step_targets.h"

#include <ATen/Functions.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

namespace {

constexpr int64_t kIgnored = -100;  // libtorch's own default

int64_t counted(const at::Tensor& targets, int64_t ignored) { return at::ne(targets, ignored).sum().item<int64_t>(); }

bool are_same(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == b.numel() && at::equal(a.flatten(), b.flatten());
}

// From the second position on.
at::Tensor next_tokens(const at::Tensor& ids) { return ids.slice(-1, 1); }

at::Tensor rows_of(const at::Tensor& tensor, int64_t samples, const layout::Origin* origin) {
  std::vector<int64_t> rows;
  bool are_together = true;
  for (int64_t row = 0; row < samples; ++row) {
    rows.push_back(layout::sample_of_row(origin, row));
    are_together = are_together && rows.back() == rows.front() + row;
  }
  return are_together && samples > 0 ? tensor.narrow(0, rows.front(), samples)
                                     : tensor.index_select(0, at::tensor(rows, at::kLong).to(tensor.device()));
}

bool are_next(const at::Tensor& targets, const at::Tensor& ids, int64_t ignored) {
  if (ids.dim() < 2 || ids.size(-1) == 0) {
    return false;
  }
  const at::Tensor next = next_tokens(ids);
  return are_same(targets, next) || are_same(targets, at::constant_pad_nd(next, {0, 1}, ignored));
}

}  // namespace

StepTargets::StepTargets(const std::vector<dtensor::NamedValue>& batch) {
  const dtensor::LocalScope plain;
  for (const dtensor::NamedValue& value : batch) {
    if (value.tensor.scalar_type() != at::kLong) {
      continue;
    }
    if (!has_ignored_ && at::eq(value.tensor, kIgnored).any().item<bool>()) {
      has_ignored_ = value.name;
    }
    readings_.emplace_back(value.tensor, /*is_next=*/false);
    readings_.emplace_back(value.tensor, /*is_next=*/true);
  }
}

std::optional<StepTargets::Counts> StepTargets::Reading::count(const at::Tensor& targets, int64_t ignored,
                                                               int64_t samples, const layout::Origin* origin) {
  const at::Tensor own = rows_of(integers_, samples, origin);
  if (!(is_next_ ? are_next(targets, own, ignored) : are_same(targets, own))) {
    return std::nullopt;
  }
  if (!known_ || known_->first != ignored) {
    known_.emplace(ignored, counted(is_next_ ? next_tokens(integers_) : integers_, ignored));
  }
  return Counts{counted(targets, ignored), known_->second};
}

std::optional<StepTargets::Counts> StepTargets::count(const at::Tensor& targets, int64_t ignored, int64_t samples,
                                                      const layout::Origin* origin, std::optional<int64_t> of_step) {
  const dtensor::LocalScope plain;
  if (of_step && last_ < readings_.size()) {
    const auto again = readings_[last_].count(targets, ignored, samples, origin);
    if (again && again->of_step == *of_step) {
      return again;
    }
  }
  std::optional<Counts> found;
  for (size_t i = 0; i < readings_.size(); ++i) {
    const auto counts = readings_[i].count(targets, ignored, samples, origin);
    if (counts && (!found || (of_step ? counts->of_step == *of_step : counts->of_step < found->of_step))) {
      found = counts, last_ = i;
    }
  }
  if (found) {
    return found;
  }
  TESSERA_CHECK(counted(targets, ignored) == targets.numel(), "[micro-batches] targets of a mean loss, ",
                targets.sizes(), ", some of them ignored (", ignored,
                "), that are none of the step's batch: how many count in the other micro-batches is not known (rank ",
                dtensor::RankState::require().ctx.rank,
                "). Accepted: targets that are in the batch, as they are or from the second position on; targets of "
                "which none is ignored; microbatches=1");
  return std::nullopt;
}

}  // namespace tessera::parallel
