#include "tessera/parallel/step_targets.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

namespace {

constexpr int64_t kIgnored = -100;  // libtorch's own default

int64_t counted(const at::Tensor& targets, int64_t ignored) { return at::ne(targets, ignored).sum().item<int64_t>(); }

// Whether they have the same elements in the same order.
bool are_same(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == b.numel() && at::equal(a, b.reshape(a.sizes()));
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
    readings_.emplace_back(value, /*is_next=*/false);
    readings_.emplace_back(value, /*is_next=*/true);
  }
}

bool StepTargets::Reading::gives(const at::Tensor& targets, int64_t ignored, int64_t samples,
                                 const layout::Origin* origin) const {
  const at::Tensor own = rows_of(integers_, samples, origin);
  return is_next_ ? are_next(targets, own, ignored) : are_same(targets, own);
}

StepTargets::Counts StepTargets::Reading::count(int64_t ignored, int64_t samples, const layout::Origin* origin) {
  if (!known_ || known_->ignored != ignored) {
    const at::Tensor targets = is_next_ ? next_tokens(integers_) : integers_;
    const int64_t rows = targets.size(0), of_row = targets.numel() / std::max<int64_t>(rows, 1);
    const at::Tensor counts = at::ne(targets, ignored).reshape({rows, of_row}).sum(1).cpu();
    const int64_t* const begin = counts.const_data_ptr<int64_t>();
    known_ = {ignored, {begin, begin + counts.numel()}, counts.sum().item<int64_t>()};
  }
  Counts found{.of_step = known_->of_step};
  for (int64_t row = 0; row < samples; ++row) {
    found.of_pass += known_->of_rows[static_cast<size_t>(layout::sample_of_row(origin, row))];
  }
  return found;
}

std::optional<StepTargets::Counts> StepTargets::count(const at::Tensor& targets, int64_t ignored, int64_t samples,
                                                      const layout::Origin* origin, std::optional<int64_t> of_step) {
  const dtensor::LocalScope plain;
  const auto read = [&](Reading& as) -> std::optional<Counts> {
    if (!as.gives(targets, ignored, samples, origin)) {
      return std::nullopt;
    }
    const Counts counts = as.count(ignored, samples, origin);
    TESSERA_CHECK(counted(targets, ignored) == counts.of_pass, "[micro-batches] targets of a mean loss, ",
                  targets.sizes(),
                  ", to which the program wrote since the step began: how many count in the step is "
                  "not known (rank ",
                  dtensor::RankState::require().ctx.rank, "). Accepted: targets that are written before the step");
    return counts;
  };
  if (of_step && last_ < readings_.size()) {
    const auto again = read(readings_[last_]);
    if (again && again->of_step == *of_step) {
      return again;
    }
  }
  std::optional<Counts> found;
  for (size_t i = 0; i < readings_.size(); ++i) {
    const auto counts = read(readings_[i]);
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

StepTargets::Counts StepTargets::count_of(const std::string& name, int64_t ignored, int64_t samples,
                                          const layout::Origin* origin) {
  const dtensor::LocalScope plain;
  const auto as_given = std::find_if(readings_.begin(), readings_.end(),
                                     [&](const Reading& reading) { return reading.is_as_given(name); });
  TESSERA_ASSERT(as_given != readings_.end());
  return as_given->count(ignored, samples, origin);
}

}  // namespace tessera::parallel
