#include "tessera/parallel/step.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

using dtensor::RankState;

PassSamples samples_of(plan::Rows& rows, int64_t index) {
  return {rows.size_of(index), rows.samples(), rows.placements(index), rows.origin(index)};
}

PassSamples samples_of(const plan::Plan& plan, int64_t count, int64_t total, int64_t first) {
  layout::Placements placements(static_cast<size_t>(plan.mesh.ndim()));
  const int64_t unit = plan::sample_unit(total, RankState::require().exact.lattice());
  for (size_t i = 0; i < plan.batch_axes.size(); ++i) {
    placements[static_cast<size_t>(plan.mesh.axis_index(plan.batch_axes[i]))] =
        layout::Shard(0, {.unit = unit, .order = static_cast<int>(i)});
  }
  return {count, total, std::move(placements), layout::Origin::make({{0, first}})};
}

layout::Spec spec_of(const layout::Mesh& mesh, const PassSamples& samples, std::vector<int64_t> sizes,
                     const at::Tensor& like, bool has_positions) {
  return layout::Spec::contiguous(mesh, samples.placements, sizes, like.scalar_type(),
                                  plan::batch_labels(like, samples.count, samples.total, has_positions));
}

void Step::begin(const StepOptions& options) {
  TESSERA_CHECK(options.passes_of_loop >= 0, "[step] a step of ", options.passes_of_loop,
                " passes; accepted: at least 1, or 0 for those of a job");
  end();
  options_ = options;
  RankState::require().pass.sites.begin_step(options.number, options.evaluation);
}

// A model whose step is one pass (a teacher's) does not change what the passes of another's are.
dtensor::StepMeans Step::means_of(const dtensor::StepMeans& before, const PassSamples& samples) const {
  dtensor::StepMeans means = before;
  if (options_->passes_of_loop == 0) {
    means.in_job = means.as_shares = true;
  } else if (options_->evaluation == 0 && (options_->passes_of_loop > 1 || means.parts == 1)) {
    means.parts = options_->passes_of_loop, means.samples = samples.total;
  }
  return means;
}

void Step::verify_begins() const {
  TESSERA_CHECK(options_ && !before_, "[step] a pass begins ",
                before_ ? "before the last one has ended" : "outside of a step");
}

Step::Before Step::before_pass(const RankState& rank) const {
  Before before{.region = rank.pass.region(), .means = rank.pass.means(), .outer = {}};
  if (before.region) {
    before.outer = Outer{rank.pass.sites.position(), rank.pass.backward_region(), rank.engine.gathered.budget()};
  }
  return before;
}

void Step::begin_pass(const PassSamples& samples) {
  verify_begins();
  TESSERA_CHECK(samples.count >= 0 && samples.count <= samples.total, "[step] a pass of ", samples.count,
                " samples in a step of ", samples.total);
  RankState& rank = RankState::require();
  Before before = before_pass(rank);
  if (!before.outer) {
    rank.engine.drop_gathered();
  }
  rank.engine.gathered.set_budget(gathered_bytes_);
  rank.pass.sites.begin_step(options_->number, options_->evaluation);
  rank.pass.sites.begin_pass();
  if (options_->backward == Backward::kAfterPass) {
    rank.pass.set_backward_region(mesh_);
  }
  rank.pass.set_region(mesh_);
  rank.pass.set_means(means_of(before.means, samples));
  before_ = std::move(before);
}

Step::Paused Step::pause() {
  TESSERA_CHECK(before_, "[step] no pass is open that could go on later");
  RankState& rank = RankState::require();
  Paused paused{std::exchange(rank.pass, dtensor::Pass()),
                std::exchange(rank.engine.gathered, dtensor::GatherCache(&dtensor::Rare::gathered))};
  Before before = *std::exchange(before_, std::nullopt);
  // What stands between passes is named as after the pass that began last, on every rank.
  rank.pass.sites.restore(paused.pass.sites.position(), paused.pass.sites.passes());
  rank.pass.set_region(std::move(before.region));
  rank.pass.set_means(before.means);
  if (before.outer) {
    rank.pass.sites.restore(std::move(before.outer->position));
    rank.pass.set_backward_region(std::move(before.outer->backward_region));
    rank.engine.gathered.set_budget(before.outer->gathered_bytes);
  }
  return paused;
}

void Step::resume(Paused paused) {
  verify_begins();
  RankState& rank = RankState::require();
  before_ = before_pass(rank);
  before_->pass = std::exchange(rank.pass, std::move(paused.pass));
  rank.engine.gathered = std::move(paused.gathered);
}

void Step::end_pass() {
  std::optional<Before> before = std::exchange(before_, std::nullopt);
  RankState* rank = RankState::current();
  if (!before || !rank) {
    return;
  }
  if (before->pass) {
    rank->pass = *std::move(before->pass);
  }
  rank->pass.set_region(std::move(before->region));
  if (options_->backward == Backward::kInPass) {
    rank->pass.set_means(before->means);
  }
  if (before->outer) {
    rank->pass.sites.restore(std::move(before->outer->position));
    rank->pass.set_backward_region(std::move(before->outer->backward_region));
    rank->engine.gathered.set_budget(before->outer->gathered_bytes);
  } else if (options_->backward == Backward::kInPass) {
    rank->engine.drop_gathered();
  }
}

void Step::end() {
  end_pass();
  if (RankState* rank = options_ ? RankState::current() : nullptr) {
    rank->engine.drop_kept();
  }
  options_.reset();
}

}  // namespace tessera::parallel
