#include "tessera/train/run/placed_run.h"

#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/values.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/offload.h"
#include "tessera/optim/clip.h"
#include "tessera/parallel/deferred.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

void verify_finite(const char* what, double value, int64_t step, const Config& config) {
  const TrainConfig& train = config.train;
  TESSERA_CHECK(std::isfinite(value) || !base::has_values(), "[train] the ", what, " of step ", step, " is ",
                std::isnan(value) ? "nan"
                : value > 0       ? "inf"
                                  : "-inf",
                "; try a smaller optimizer.lr (now ", config.optimizer.lr, "), a longer train.warmup (now ",
                train.warmup, "), a smaller train.clip (now ", train.clip, ", 0 is off), or train.dtype = \"float64\"");
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

std::shared_ptr<models::LanguageModel> deferred_model(const Config& config) {
  const auto& train = config.train;
  dtensor::set_numerics(config.is_exact() ? dtensor::Numerics::kExact : dtensor::Numerics::kFast, train.lattice);
  dtensor::manual_seed(static_cast<uint64_t>(train.seed));
  return parallel::deferred([&] { return make_model(config); });
}

}  // namespace

double value_of(const at::Tensor& scalar) {
  const auto value = scalar.detach();
  return (dtensor::is_dtensor(value) ? dtensor::full_tensor(value) : value).item<double>();
}

PlacedRun::PlacedRun(const Config& config)
    : config_(config),
      model_(deferred_model(config)),
      optimizer_(make_optimizer(config, model_->parameters())),
      plan_(make_plan(config, *model_)) {
  if (!config.offload.folder.empty()) {
    dtensor::set_offload_folder(config.offload.folder);
  }
  parallel::place(*model_, plan_, optimizer_.get());
  auto& model = *model_;
  job_.emplace(
      model_, plan_, [&model](const std::vector<at::Tensor>& batch) { return model.loss(batch[0], batch[1]); },
      parallel::JobOptions{.accumulate = config.train.accumulate,
                           .optimizer = optimizer_.get(),
                           .loss_scaler = config.precision.compute == "float16" ? &scaler_ : nullptr,
                           .file_names = in_files(config, {}).names});
}

StepRecord PlacedRun::step(int64_t step, const parallel::Job::ReadRows& read, const std::function<void()>& between) {
  const auto& train = config_.train;
  StepRecord record{
      .step = step + 1, .lr = make_schedule(config_)(step), .tokens = train.batch * config_.data.sequence};
  set_rate(*optimizer_, record.lr);
  const auto loss = job_->run_rows(train.batch, read);
  record.loss = value_of(loss);
  verify_finite("loss", record.loss, record.step, config_);
  loss.backward();
  between();
  const double limit = train.clip > 0 ? train.clip : std::numeric_limits<double>::infinity();
  record.grad_norm = value_of(optim::clip_grad_norm(model_->parameters(), limit));
  auto* scaler = job_->options().loss_scaler;
  if (!scaler || !scaler->has_overflowed()) {
    verify_finite("gradient norm", record.grad_norm, record.step, config_);
  }
  if (scaler) {
    scaler->step(*optimizer_);
  } else {
    optimizer_->step();
  }
  optimizer_->zero_grad();
  return record;
}

}  // namespace tessera::train
