#include "tessera/parallel/whole_step.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/mul.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/parallel/local_rows.h"
#include "tessera/parallel/step.h"

namespace tessera::parallel {

namespace {

using dtensor::NamedValue;
using dtensor::RankState;

// Tokens that are announced for a step end with it.
class AnnouncedTokens {
 public:
  AnnouncedTokens() : before_(RankState::require().exact.step_tokens()) {}
  ~AnnouncedTokens() { RankState::require().exact.set_step_tokens(before_); }
  AnnouncedTokens(const AnnouncedTokens&) = delete;
  AnnouncedTokens& operator=(const AnnouncedTokens&) = delete;

 private:
  int64_t before_;
};

int64_t samples_in(const std::vector<NamedValue>& batch) {
  const auto first = std::find_if(batch.begin(), batch.end(), [](const auto& value) { return value.tensor.dim() > 0; });
  TESSERA_CHECK(first != batch.end(), "[micro-batches] a step's batch without a tensor of samples along dim 0");
  return first->tensor.size(0);
}

// The rows of all ranks, of tensors that may be targets.
std::vector<NamedValue> gathered_integers(const plan::Plan& plan, const std::vector<NamedValue>& batch) {
  LocalRows own(plan, batch, "job");
  const PassSamples all = samples_of(plan, own.count(), own.count(), 0);
  own.deal(all.placements);
  std::vector<NamedValue> result;
  for (const NamedValue& value : batch) {
    if (value.tensor.scalar_type() == at::kLong) {
      std::vector<int64_t> sizes = value.tensor.sizes().vec();
      sizes[0] = own.count();
      const layout::Spec spec = spec_of(plan.mesh, all, std::move(sizes), value.tensor, /*has_positions=*/false);
      result.push_back({value.name, dtensor::full_tensor(own.place(value.tensor, spec))});
    }
  }
  return result;
}

}  // namespace

// The model as a job sees it.
struct WholeStep::Parameters : torch::nn::Module {
  void hold(const std::vector<at::Tensor>& tensors) {
    const std::vector<at::Tensor> held = parameters();
    const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (std::equal(held.begin(), held.end(), tensors.begin(), tensors.end(), is_same)) {
      return;
    }
    parameters_.clear();
    for (const at::Tensor& tensor : tensors) {
      register_parameter(std::to_string(parameters_.size()), tensor, tensor.requires_grad());
    }
  }
};

WholeStep::WholeStep(plan::Plan plan, int64_t micro_batches, Batch rows)
    : parameters_(std::make_shared<Parameters>()),
      job_(parameters_, std::move(plan), [this](const std::vector<at::Tensor>& batch) { return loss_of(batch); },
           {.accumulate = micro_batches, .batch = rows}) {}

at::Tensor WholeStep::run(int64_t step, const std::vector<NamedValue>& batch, const std::vector<at::Tensor>& parameters,
                          const Forward& forward) {
  const AnnouncedTokens announced;
  parameters_->hold(parameters);
  job_.set_step(step);
  const auto forget = c10::make_scope_exit([this] { given_ = {}; });
  return job_.run_named(take(batch, forward));
}

std::vector<NamedValue> WholeStep::take(const std::vector<NamedValue>& batch, const Forward& forward) {
  const layout::Mesh& mesh = job_.plan().mesh;
  const int64_t own = samples_in(batch);
  given_ = {.forward = &forward};
  std::vector<NamedValue> rows;
  for (const NamedValue& value : batch) {
    const bool is_row = value.tensor.dim() > 0 && value.tensor.size(0) == own;
    given_.whole.push_back(
        is_row ? std::nullopt
               : std::optional(dtensor::distribute(value.tensor, mesh, layout::Placements(mesh.ndim()))));
    if (is_row) {
      rows.push_back(value);
      given_.names.push_back(value.name);
    }
  }
  const bool is_local = job_.options().batch == Batch::kLocal && !job_.plan().batch_axes.empty();
  const std::vector<NamedValue> all = is_local ? gathered_integers(job_.plan(), rows) : rows;
  given_.targets = StepTargets(all);
  return rows;
}

at::Tensor WholeStep::loss_of(const std::vector<at::Tensor>& rows) {
  const dtensor::Meta& meta = *dtensor::meta_of(rows.front());
  pass_ = {.samples = rows.front().size(0), .of_samples = meta.spec->labels[0].front().total, .origin = meta.origin};
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].scalar_type() == at::kLong) {
      const auto integers = dtensor::MetaPtr::reclaim_copy(dtensor::meta_of(rows[i]));
      pass_.integers.push_back({&given_.names[i], integers, integers->moment()});
    }
  }
  std::vector<at::Tensor> batch;
  auto next = rows.begin();
  for (const auto& whole : given_.whole) {
    batch.push_back(whole ? *whole : *next++);
  }
  const at::Tensor loss = (*given_.forward)(batch);
  verify_told();
  return weighed(loss);
}

int64_t WholeStep::first_sample() const { return layout::sample_of_row(pass_.origin, 0); }

void WholeStep::tell_targets(const at::Tensor& targets, int64_t ignored) {
  RankState& rank = RankState::require();
  if (rank.pass.is_recomputing()) {
    return;  // told before
  }
  const at::NoGradGuard no_grad;
  const size_t loss = pass_.losses++;
  if (rank.exact.step_tokens() > 0 && !given_.is_announced) {
    return;  // the program counts
  }
  const auto before = loss < given_.counts.size() ? std::optional(given_.counts[loss]) : std::nullopt;
  const std::string* const name = given_as(targets);
  const auto found =
      name ? std::optional(given_.targets.count_of(*name, ignored, pass_.samples, pass_.origin))
           : given_.targets.count(dtensor::full_tensor(targets), ignored, pass_.samples, pass_.origin, before);
  const StepTargets::Counts counts = found.value_or(StepTargets::Counts{pass_.samples, pass_.of_samples});
  const bool is_exact = rank.exact.lattice().has_value();
  verify_one_weight(counts, is_exact);
  verify_same_count(loss, counts.of_step);
  pass_.counts = counts;
  if (is_exact && found) {
    rank.exact.set_step_tokens(counts.of_step);
    given_.is_announced = true;
  }
  TESSERA_CHECK(is_exact || counts.of_pass > 0 || counts.of_step == 0, "[micro-batches] all targets of samples from ",
                first_sample(), " on are ignored: their mean is 0 / 0 (rank ", rank.ctx.rank,
                "). Accepted: fewer micro-batches; exact numerics, where it is a share of the step's mean");
}

const std::string* WholeStep::given_as(const at::Tensor& targets) const {
  const dtensor::Meta& meta = *dtensor::meta_of(targets);
  const auto found = std::find_if(pass_.integers.begin(), pass_.integers.end(), [&](const GivenIntegers& each) {
    return &meta.memory() == &each.meta->memory() && meta.spec->numel() == each.meta->spec->numel();
  });
  const bool is_same = found != pass_.integers.end() && !meta.derived() && targets.is_contiguous() &&
                       found->meta->unchanged_since(found->moment);
  return is_same ? found->name : nullptr;
}

void WholeStep::verify_one_weight(const StepTargets::Counts& counts, bool is_exact) const {
  if (!pass_.counts) {
    return;
  }
  const auto& before = *pass_.counts;
  TESSERA_CHECK(is_exact ? before == counts : before.of_pass * counts.of_step == counts.of_pass * before.of_step,
                "[micro-batches] two mean losses of one model, over ", before.of_pass, " and ", counts.of_pass,
                " targets of a micro-batch and ", before.of_step, " and ", counts.of_step, " of the step (rank ",
                RankState::require().ctx.rank,
                "): their sum has no one weight. Accepted: losses over the same targets; microbatches=1");
}

void WholeStep::verify_same_count(size_t loss, int64_t of_step) {
  if (loss == given_.counts.size()) {
    given_.counts.push_back(of_step);
  }
  TESSERA_CHECK(loss < given_.counts.size() && given_.counts[loss] == of_step,
                "[micro-batches] targets that are now one tensor of the batch and now another: the samples from ",
                first_sample(), " on are of ", of_step, " in the step (rank ", RankState::require().ctx.rank,
                "). Accepted: a batch in which one tensor has the targets; microbatches=1");
}

void WholeStep::verify_told() const {
  const std::optional<std::string>& ignored = given_.targets.has_ignored();
  TESSERA_CHECK(
      !ignored || pass_.losses > 0 || pass_.is_share, "[micro-batches] `", ignored.value_or(""),
      "` has targets to ignore (-100), and the model does not take their mean by cross_entropy or nll_loss of "
      "torch.nn.functional: which of them count in a micro-batch is not known (rank ",
      RankState::require().ctx.rank,
      "). Accepted: those; num_items_in_batch for models that divide by it; microbatches=1");
}

at::Tensor WholeStep::weighed(const at::Tensor& loss) const {
  if (RankState::require().exact.lattice()) {
    return loss;
  }
  const int64_t samples = pass_.samples, total = pass_.of_samples;
  if (pass_.is_share && pass_.losses == 0) {
    return samples == total ? loss : at::mul(loss, static_cast<double>(total) / static_cast<double>(samples));
  }
  if (!pass_.counts || pass_.counts->of_pass * total == pass_.counts->of_step * samples) {
    return loss;
  }
  const double of_targets = static_cast<double>(pass_.counts->of_pass) / static_cast<double>(pass_.counts->of_step);
  return at::mul(loss, of_targets * static_cast<double>(total) / static_cast<double>(samples));
}

}  // namespace tessera::parallel
