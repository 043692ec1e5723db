#include "tessera/parallel/job.h"

#include <tuple>
#include <utility>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/dispatch/outside_job.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/front/gradients_aside.h"
#include "tessera/dtensor/front/group_gradients.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/parallel/lattice_notes.h"
#include "tessera/parallel/same_batch.h"
#include "tessera/parallel/step.h"
#include "tessera/parallel/step_passes.h"
#include "tessera/plan/rows.h"

namespace tessera::parallel {

namespace {

using dtensor::RankState;
using layout::Placements;
using layout::Range;
using layout::Spec;
using torch::autograd::variable_list;

// Stands behind the step's loss: backward scales the gradients that the job holds and hands them to the parameters.
struct Deposit final : torch::autograd::Node {
  std::vector<at::Tensor> gradients, parameters;
  bool is_last = false;
  bool is_spent = false;

  variable_list apply(variable_list&& grads) override {
    TESSERA_CHECK(
        !is_spent,
        "[job] backward through the loss of a step a second time: its gradients were handed out by the first. Pass "
        "retain_graph to the first, or call the job again.");
    TESSERA_CHECK_AS(
        c10::NotImplementedError, !at::GradMode::is_enabled(),
        "[backward] create_graph from the loss of a step, whose gradients are made with it and have no "
        "graph of their own; accepted: create_graph inside of the model's forward, or in a pass that is no "
        "step, without schedule and micro-batches");
    at::NoGradGuard no_grad;
    is_spent = is_last;
    // The last time nothing is kept, so that the parameters' `.grad` take the tensors instead of copies.
    variable_list result = is_last ? std::move(gradients) : gradients;
    if (const at::Tensor& scale = grads.at(0); scale.defined() && scale.item().toDouble() != 1) {
      for (at::Tensor& gradient : result) {
        gradient = at::mul(gradient, scale);
      }
    }
    for (size_t i = 0; i < result.size() && is_last; ++i) {
      if (can_be_given(result[i], parameters[i])) {
        parameters[i].mutable_grad() = std::move(result[i]);
      }
    }
    return result;
  }

  // Whether a gradient that is handed on would become the parameter's as it is.
  static bool can_be_given(const at::Tensor& gradient, const at::Tensor& parameter) {
    return gradient.use_count() == 1 && !parameter.grad().defined() && dtensor::is_dtensor(gradient) &&
           dtensor::is_dtensor(parameter) && dtensor::meta_of(gradient)->spec == dtensor::meta_of(parameter)->spec &&
           dtensor::is_unheard(parameter);
  }

  void will_release_variables() override { is_last = true; }
  void release_variables() override {
    gradients.clear();
    parameters.clear();
  }
};

}  // namespace

struct Job::State {
  std::shared_ptr<torch::nn::Module> model;
  plan::Plan plan;
  Loss loss;
  JobOptions options;
  int64_t step = 0;
  CheckedCalls calls;
  std::map<std::tuple<int64_t, int64_t, bool>, plan::Rows> rows;  // by the samples, their unit, and whether in `exact`
  LatticeNotes notes;
  std::map<std::pair<int64_t, bool>, PassList> lists;  // by the number of micro-batches, and whether with gradients

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> wanted;
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.requires_grad()) {
        wanted.push_back(parameter);
      }
    }
    return wanted;
  }

  plan::Rows& rows_of(int64_t samples);
  dtensor::PassMerges merges_of(const plan::Rows& rows);
  std::vector<at::Tensor> micro_batch(plan::Rows& rows, int64_t index, const PassSamples& samples,
                                      const ReadPass& read) const;
  at::Tensor forward(const std::vector<at::Tensor>& batch) const;
  const PassList& list_of(int64_t micro_batches, bool with_gradients);
};

namespace {

// The micro-batch's share of the step's mean.
at::Tensor weighted(const at::Tensor& loss, int64_t samples, int64_t of) {
  return samples == of ? loss : at::mul(loss, static_cast<double>(samples) / static_cast<double>(of));
}

// This rank's parts of ranks' own rows, which are worked on so.
std::vector<at::Tensor> placed(LocalRows own, const plan::Plan& plan, const PassSamples& samples,
                               const std::vector<dtensor::NamedValue>& batch) {
  own.deal(samples.placements);
  std::vector<at::Tensor> parts;
  for (const dtensor::NamedValue& value : batch) {
    std::vector<int64_t> sizes = value.tensor.sizes().vec();
    sizes[0] = samples.count;
    const Spec spec = spec_of(plan.mesh, samples, std::move(sizes), value.tensor, /*has_positions=*/false);
    parts.push_back(dtensor::to_local(own.place(value.tensor, spec)));
  }
  return parts;
}

// The gradients of a scaled loss become those of the loss; says whether any of them, on any rank, is not finite.
bool unscale(const std::vector<at::Tensor>& held, double scale) {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& gradient : held) {
    if (gradient.defined()) {
      by_dtype[gradient.scalar_type()].push_back(gradient);
    }
  }
  at::Tensor found = at::zeros({1}, at::kFloat);
  const at::Tensor inverse = at::full({1}, 1 / scale, at::kFloat);
  for (const auto& [dtype, gradients] : by_dtype) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  }
  return found.item<float>() != 0;
}

at::Tensor with_deposit(const at::Tensor& loss, std::vector<at::Tensor> held,
                        const std::vector<at::Tensor>& parameters) {
  at::Tensor result = loss.detach();
  auto node = dtensor::make_node<Deposit>();
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < held.size(); ++i) {
    if (!held[i].defined()) {
      continue;  // unused: its hooks are not called
    }
    node->gradients.push_back(std::move(held[i]));
    node->parameters.push_back(parameters[i]);
    edges.push_back(torch::autograd::impl::gradient_edge(parameters[i]));
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

}  // namespace

plan::Rows& Job::State::rows_of(int64_t samples) {
  TESSERA_CHECK(samples >= 1, "[job] a step needs at least one sample, got ", samples);
  const auto& lattice = RankState::require().exact.lattice();
  const int64_t unit = plan::sample_unit(samples, lattice);
  const std::tuple key(samples, unit, lattice.has_value());
  const auto found = rows.find(key);
  if (found != rows.end()) {
    return found->second;
  }
  const int64_t micro_batches = std::min(options.accumulate, samples);
  const bool completes = lattice && micro_batches > 1 && plan.merges_in_passes();
  const plan::Deal wanted = completes ? plan::Deal::kByPass : plan::Deal::kByBlock;
  return rows.emplace(key, plan::deal_rows(plan.mesh, plan.batch_axes, samples, micro_batches, unit, wanted))
      .first->second;
}

dtensor::PassMerges Job::State::merges_of(const plan::Rows& rows) {
  const bool completes = rows.deal() == plan::Deal::kByPass || rows.micro_batches() == 1;
  if (completes || !RankState::require().exact.lattice()) {
    return dtensor::PassMerges::kAll;
  }
  if (plan.merges_in_passes()) {
    notes.note_blocks(plan, rows);
  }
  return dtensor::PassMerges::kNone;
}

std::vector<at::Tensor> Job::State::micro_batch(plan::Rows& rows, int64_t index, const PassSamples& samples,
                                                const ReadPass& read) const {
  RankState& rank = RankState::require();
  const Range mine = rows.samples_of(rank.ctx.coord(plan.mesh), index);
  std::vector<at::Tensor> batch;
  for (const at::Tensor& part : read(index, mine)) {
    TESSERA_CHECK(!dtensor::is_dtensor(part) && part.dim() >= 1 && part.size(0) == mine.size(),
                  "[job] expected plain tensors with the ", mine.size(), " samples [", mine.begin, ", ", mine.end,
                  ") along dim 0, got ", part.sizes(), " (rank ", rank.ctx.rank, ")");
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[0] = samples.count;
    const Spec spec = spec_of(plan.mesh, samples, std::move(sizes), part, /*has_positions=*/part.dim() >= 2);
    batch.push_back(dtensor::wrap(part.contiguous(), spec, samples.origin));
  }
  return batch;
}

at::Tensor Job::State::forward(const std::vector<at::Tensor>& batch) const {
  at::Tensor result = loss(batch);
  TESSERA_CHECK(result.defined() && result.numel() == 1, "[job] the model must return its mean loss as a scalar, got ",
                result.defined() ? c10::str("a tensor of ", result.sizes()) : "nothing");
  TESSERA_CHECK(dtensor::is_dtensor(result) && (result.requires_grad() || !at::GradMode::is_enabled()),
                "[job] no parameter of the placed model that requires a gradient took part in the loss");
  return result;
}

const PassList& Job::State::list_of(int64_t micro_batches, bool with_gradients) {
  const auto [entry, is_new] = lists.try_emplace({micro_batches, with_gradients});
  if (is_new) {
    const bool is_scheduled = with_gradients && !plan.schedule.empty();
    entry->second =
        is_scheduled ? scheduled_passes(plan, micro_batches) : passes_in_turn(micro_batches, with_gradients);
  }
  return entry->second;
}

Job::Job(std::shared_ptr<torch::nn::Module> model, plan::Plan plan, Loss loss, JobOptions options)
    : state_(std::make_shared<State>()) {
  TESSERA_CHECK(options.accumulate >= 1, "[job] accumulate must be at least 1, got ", options.accumulate);
  state_->model = std::move(model);
  plan.verify_axes();
  state_->plan = std::move(plan);
  state_->loss = std::move(loss);
  state_->options = options;
  for (const at::Tensor& parameter : state_->parameters()) {
    if (dtensor::is_dtensor(parameter) && dtensor::meta_of(parameter)->parameter) {
      dtensor::read_by_job(*dtensor::meta_of(parameter)->parameter);
    }
  }
}

at::Tensor Job::run(const std::vector<at::Tensor>& batch) {
  std::vector<dtensor::NamedValue> values;
  for (const at::Tensor& tensor : batch) {
    values.push_back({c10::str("tensor ", values.size()), tensor});
  }
  return run_named(values);
}

at::Tensor Job::run_named(const std::vector<dtensor::NamedValue>& batch) {
  TESSERA_CHECK(!batch.empty() && batch[0].tensor.dim() >= 1,
                "[job] expected the step's batch: tensors with the samples along dim 0");
  const int64_t samples = batch[0].tensor.size(0);
  for (const dtensor::NamedValue& value : batch) {
    TESSERA_CHECK(value.tensor.dim() >= 1 && value.tensor.size(0) == samples,
                  "[job] the batch's tensors disagree on the number of samples: ", samples, " and ",
                  value.tensor.sizes());
  }
  const bool is_checked = state_->calls.next();
  if (state_->options.batch == Batch::kLocal && !state_->plan.batch_axes.empty()) {
    return run_local(batch, is_checked);
  }
  if (is_checked) {
    verify_same_batch(batch, state_->plan, "job",
                      base::in_language("{.batch = Batch::kLocal} of the job, or job.run_rows(samples, read)",
                                        "tessera.parallelize(..., batch=\"local\")"));
  }
  return run_rows(samples, [&](int64_t begin, int64_t end) {
    std::vector<at::Tensor> rows;
    for (const dtensor::NamedValue& value : batch) {
      rows.push_back(value.tensor.narrow(0, begin, end - begin));
    }
    return rows;
  });
}

at::Tensor Job::run_local(const std::vector<dtensor::NamedValue>& batch, bool is_checked) {
  RankState& rank = RankState::require();
  const plan::Plan& plan = state_->plan;
  LocalRows own(plan, batch, "job");
  if (is_checked) {
    own.verify_same(batch);
  }
  const int64_t samples = own.count();
  TESSERA_CHECK(samples >= 1, "[job] a step needs at least one sample, got none on any rank");
  plan::Rows& rows = state_->rows_of(samples);
  if (rows.deal() == plan::Deal::kByPass) {
    std::vector<std::vector<at::Tensor>> parts;
    for (int64_t k = 0, begin = 0; k < rows.micro_batches(); begin += rows.size_of(k), ++k) {
      parts.push_back(placed(own.of({begin, begin + rows.size_of(k)}), plan, samples_of(rows, k), batch));
    }
    return run_passes_of(samples, [&](int64_t k, const Range&) { return parts[k]; });
  }
  // The blocks of the ranks, before they are cut into micro-batches.
  plan::Rows blocks(plan.mesh, plan.batch_axes, samples, 1, plan::sample_unit(samples, rank.exact.lattice()));
  const Range mine = blocks.samples_of(rank.ctx.coord(plan.mesh), 0);
  const std::vector<at::Tensor> parts = placed(own, plan, samples_of(blocks, 0), batch);
  return run_rows(samples, [&](int64_t begin, int64_t end) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& part : parts) {
      rows.push_back(part.narrow(0, begin - mine.begin, end - begin));
    }
    return rows;
  });
}

at::Tensor Job::run_rows(int64_t samples, const ReadRows& read) {
  return run_passes_of(samples, [&](int64_t, const Range& mine) { return read(mine.begin, mine.end); });
}

at::Tensor Job::run_passes_of(int64_t samples, const ReadPass& read) {
  RankState& rank = RankState::require();
  plan::Rows& rows = state_->rows_of(samples);
  const bool with_gradients = at::GradMode::is_enabled();
  const std::vector<at::Tensor> parameters = state_->parameters();
  LossScaler* scaler = state_->options.loss_scaler;
  Step step(state_->plan);
  const StepScope scope(step, {.number = static_cast<uint64_t>(state_->step)});

  StepPasses passes{.parameters = with_gradients ? parameters : std::vector<at::Tensor>(),
                    .scale = scaler ? std::optional(scaler->scale()) : std::nullopt};
  if (with_gradients) {
    state_->notes.note_idle("job", state_->plan, samples, samples);
    passes.merges = state_->merges_of(rows);
  }
  std::vector<int64_t> index;  // of those that have samples
  for (int64_t k = 0; k < rows.micro_batches(); ++k) {
    if (rows.size_of(k) > 0) {
      passes.samples.push_back(samples_of(rows, k));
      index.push_back(k);
    }
  }
  passes.batch = [&](int64_t k) { return state_->micro_batch(rows, index[k], passes.samples[k], read); };
  passes.loss = [&](int64_t k, const std::vector<at::Tensor>& batch) {
    const at::Tensor loss = state_->forward(batch);
    // In `exact` it is a share of the step's mean already.
    return rank.exact.lattice() ? loss : weighted(loss, passes.samples[k].count, samples);
  };
  auto [losses, held] = run_passes(step, state_->list_of(static_cast<int64_t>(index.size()), with_gradients), passes);
  at::Tensor total;
  for (const at::Tensor& loss : losses) {
    total = total.defined() ? total.add(loss) : loss;
  }
  total = dtensor::redistribute(total, Placements(state_->plan.mesh.ndim()));
  if (!with_gradients) {
    return total;
  }
  dtensor::merge_step(rank, held, parameters);
  if (scaler) {
    scaler->note(unscale(held, scaler->scale()));
  }
  ++state_->step;
  return with_deposit(total, std::move(held), parameters);
}

Range Job::rows_of(int64_t samples, int64_t index) const {
  return state_->rows_of(samples).samples_of(RankState::require().ctx.coord(state_->plan.mesh), index);
}

void Job::set_step_tokens(int64_t tokens) { dtensor::set_step_tokens(tokens); }

int64_t Job::step() const { return state_->step; }
void Job::set_step(int64_t step) { state_->step = step; }
torch::nn::Module& Job::model() const { return *state_->model; }
const plan::Plan& Job::plan() const { return state_->plan; }
const JobOptions& Job::options() const { return state_->options; }

}  // namespace tessera::parallel
