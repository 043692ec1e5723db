#include "tessera/parallel/forward_pass.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/plan/rows.h"

namespace tessera::parallel {
namespace {

using dtensor::Origin;
using dtensor::RankState;
using layout::Placements;

}  // namespace

ForwardPasses::ForwardPasses(plan::Plan plan, int64_t micro_batches)
    : plan_(std::move(plan)), micro_batches_(micro_batches) {
  plan_.verify_axes();
  TESSERA_CHECK(micro_batches >= 1, "[forward] a step of ", micro_batches, " micro-batches; accepted: at least 1");
}

ForwardPasses ForwardPasses::of_copy() const {
  ForwardPasses copy = *this;
  copy.is_open_ = copy.checks_operands_ = false;
  return copy;
}

void ForwardPasses::check(const std::vector<dtensor::NamedValue>& batch) {
  RankState& state = RankState::require();
  if (std::exchange(checks_operands_, false)) {
    state.set_checks_plain(false);
  }
  if (!calls_.next()) {
    return;
  }
  Placements rows(static_cast<size_t>(plan_.mesh.ndim()));
  for (const auto& axis : plan_.batch_axes) {
    rows[static_cast<size_t>(plan_.mesh.axis_index(axis))] = layout::Shard(0);
  }
  const auto mesh = c10::str(base::in_language("layout::Mesh::parse(\"", "tessera.Mesh('"), plan_.mesh.str(),
                             base::in_language("\")", "')"));
  verify_same_batch(
      batch, plan_, "forward",
      base::in_library(c10::str("from_local(part, ", mesh, ", \"", layout::str(plan_.mesh, rows), "\")")));
  checks_operands_ = !state.set_checks_plain(true);
}

ForwardPasses::Samples ForwardPasses::next_pass(int64_t samples) {
  dtensor::Sites& sites = RankState::require().sites;
  sites.step = static_cast<uint64_t>(passes_ / micro_batches_);
  if (!at::GradMode::is_enabled()) {
    sites.evaluation = static_cast<uint64_t>(++evaluations_);
    return {samples, samples, 0};
  }
  sites.evaluation = static_cast<uint64_t>(evaluations_ = 0);
  const int64_t index = passes_++ % micro_batches_;
  dtensor::StepMeans& means = RankState::require().means;
  if (micro_batches_ > 1 || means.parts == 1) {
    means.parts = micro_batches_, means.samples = samples * micro_batches_;
  }
  return {samples, samples * micro_batches_, samples * index};
}

std::vector<at::Tensor> ForwardPasses::begin(const std::vector<dtensor::NamedValue>& batch) {
  RankState& state = RankState::require();
  end();
  check(batch);
  state.gathered.clear();
  state.gathered.budget = plan_.keep_gathered_bytes;
  const auto first = std::find_if(batch.begin(), batch.end(), [](const auto& value) { return value.tensor.dim() > 0; });
  const Samples samples = next_pass(first == batch.end() ? 0 : first->tensor.size(0));
  std::vector<at::Tensor> result;
  for (const auto& value : batch) {
    result.push_back(distribute(value.tensor, samples));
  }
  state.sites.begin_pass();
  state.backward_region = plan_.mesh;
  region_before_ = std::exchange(state.region, plan_.mesh);
  is_open_ = true;
  return result;
}

void ForwardPasses::end() {
  RankState* state = RankState::current();
  if (std::exchange(is_open_, false) && state) {
    state->region = region_before_;
  }
}

at::Tensor ForwardPasses::distribute(const at::Tensor& tensor, const Samples& samples) const {
  if (!tensor.defined() || dtensor::is_dtensor(dtensor::unwrapped(tensor))) {
    return tensor;
  }
  Placements placements(static_cast<size_t>(plan_.mesh.ndim()));
  if (tensor.dim() == 0 || tensor.size(0) != samples.count) {
    return placed(tensor, placements, {});
  }
  const int64_t unit = plan::sample_unit(samples.total, RankState::require().lattice());
  for (const auto& axis : plan_.batch_axes) {
    placements[static_cast<size_t>(plan_.mesh.axis_index(axis))] = layout::Shard(0, {.unit = unit});
  }
  at::Tensor result =
      placed(tensor, placements, plan::batch_labels(tensor, samples.count, samples.total, tensor.dim() == 2));
  dtensor::meta_of(dtensor::unwrapped(result))->origin = Origin::make({{0, samples.first}});
  return result;
}

at::Tensor ForwardPasses::placed(const at::Tensor& tensor, const Placements& placements,
                                 const layout::Labels& labels) const {
  const bool has_gradient = at::GradMode::is_enabled() && tensor.requires_grad();
  if (!has_gradient && dtensor::unwrapped(tensor).is_same(tensor)) {
    return dtensor::distribute(tensor, plan_.mesh, placements, labels);
  }
  const auto whole =
      layout::Spec::contiguous(plan_.mesh, Placements(placements.size()), tensor.sizes(), tensor.scalar_type(), labels);
  return dtensor::call_redistribute(dtensor::call_from_plain(tensor, whole), whole.with(placements));
}

}  // namespace tessera::parallel
