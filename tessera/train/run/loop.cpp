#include "tessera/train/run/loop.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/optim/clip.h"
#include "tessera/optim/state_file.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/job.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

double value_of(const at::Tensor& scalar) {
  const auto value = scalar.detach();
  return (dtensor::is_dtensor(value) ? dtensor::full_tensor(value) : value).item<double>();
}

std::vector<at::Tensor> tensors_of(const data::Batch& batch) { return {batch.tokens, batch.targets}; }

void verify_finite(const char* what, double value, int64_t step, const TrainConfig& train) {
  TESSERA_CHECK(std::isfinite(value), "[train] the ", what, " of step ", step, " is ",
                std::isnan(value) ? "nan"
                : value > 0       ? "inf"
                                  : "-inf",
                "; try a smaller train.lr (now ", train.lr, "), a longer train.warmup (now ", train.warmup,
                "), a smaller train.clip (now ", train.clip, ", 0 is off), or train.dtype = \"float64\"");
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

// The mean loss over the first `batches` batches of the held-out text (0: all whole ones); nothing if it holds no
// sample.
std::optional<EvalRecord> evaluate(parallel::Job& job, models::LanguageModel& model, const data::Sampler& sampler,
                                   int64_t step, int64_t batch, int64_t batches) {
  const auto available = sampler.held_out_count();
  batch = std::min(batch, available);
  if (batch == 0) {
    return std::nullopt;
  }
  batches = batches == 0 ? available / batch : std::min(batches, available / batch);
  const at::NoGradGuard no_grad;
  model.eval();
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i) {
    comm::throw_if_stopped();
    sum += value_of(job.run_rows(batch, [&](int64_t begin, int64_t end) {
      return tensors_of(sampler.held_out(i * batch + begin, end - begin));
    }));
  }
  model.train();
  return EvalRecord{step,
                    sum / static_cast<double>(batches),
                    data::unigram_entropy(sampler.corpus().held_out()),
                    batches * batch * sampler.length(),
                    sampler.corpus().is_bytes(),
                    sampler.corpus().bytes_per_token()};
}

// One optimizer step; step numbers count from 0 in here.
StepRecord train_step(const Config& config, const data::Sampler& sampler, parallel::Job& job,
                      torch::optim::Optimizer& optimizer, int64_t step, Observer& observer) {
  const auto& train = config.train;
  const auto start = Clock::now();
  observer.on_begin(step + 1);
  StepRecord record{.step = step + 1, .lr = make_schedule(config)(step), .tokens = train.batch * sampler.length()};
  set_rate(optimizer, record.lr);
  const auto loss = job.run_rows(
      train.batch, [&](int64_t begin, int64_t end) { return tensors_of(sampler.rows(step, begin, end - begin)); });
  record.loss = value_of(loss);
  verify_finite("loss", record.loss, record.step, train);
  loss.backward();
  observer.on_update();
  const double limit = train.clip > 0 ? train.clip : std::numeric_limits<double>::infinity();
  record.grad_norm = value_of(optim::clip_grad_norm(job.model().parameters(), limit));
  auto* scaler = job.options().loss_scaler;
  if (!scaler || !scaler->has_overflowed()) {
    verify_finite("gradient norm", record.grad_norm, record.step, train);
  }
  if (scaler) {
    scaler->step(optimizer);
  } else {
    optimizer.step();
  }
  optimizer.zero_grad();
  record.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  record.peak_bytes = peak_resident_bytes();
  return record;
}

}  // namespace

data::Sampler make_sampler(const Config& config) {
  const auto width = config.data.token_dtype == "uint32" ? data::TokenWidth::kFour : data::TokenWidth::kTwo;
  return {
      data::Corpus(config.data.file, make_vocabulary(config), {.held_out = config.data.held_out, .bin_width = width}),
      {.seed = static_cast<uint64_t>(config.train.seed),
       .length = config.data.sequence,
       .vocabulary = config.model.vocab_size}};
}

void run_loop(const Config& config, const data::Sampler& sampler, const LoopOptions& options, Observer& observer) {
  const auto& train = config.train;
  dtensor::set_numerics(config.is_exact() ? dtensor::Numerics::kExact : dtensor::Numerics::kFast, train.lattice);
  dtensor::manual_seed(static_cast<uint64_t>(train.seed));
  const auto model = parallel::deferred([&] { return make_model(config); });
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(train.lr)
                                                         .betas({train.betas[0], train.betas[1]})
                                                         .eps(train.eps)
                                                         .weight_decay(train.weight_decay));
  const auto plan = make_plan(config, *model);
  parallel::place(*model, plan, &optimizer);
  parallel::LossScaler scaler;
  parallel::Job job(model, plan, [&](const std::vector<at::Tensor>& batch) { return model->loss(batch[0], batch[1]); },
                    {.accumulate = train.accumulate,
                     .optimizer = &optimizer,
                     .loss_scaler = config.precision.compute == "float16" ? &scaler : nullptr,
                     .file_names = in_files(config, {}).names});
  if (!options.resume_from.empty()) {
    resume(options.resume_from, job, config, sampler,
           [&](const std::string& what, const ResumePoint& next) { observer.on_damage(what, next); });
  } else if (!options.init_from.empty()) {
    checkpoint::load_model(options.init_from, job);
  }
  Saves saves(options.saves, config, sampler);
  const Training training{*model, plan, optimizer};
  observer.on_start(training);

  std::optional<optim::StateFile> state_file;
  if (!config.offload.state.empty()) {
    state_file.emplace(config.offload.state);
  }
  const auto steps = options.steps > 0 ? std::min(options.steps, train.steps) : train.steps;
  for (int64_t step = job.step(); step < steps; ++step) {
    comm::throw_if_stopped();
    observer.on_step(train_step(config, sampler, job, optimizer, step, observer), training);
    if (state_file) {
      state_file->keep(parallel::state_of(optimizer));
    }
    const bool is_last = step + 1 == steps;
    if (saves.after_step(job, step + 1, steps) && !is_last) {
      saves.finish();
      observer.on_finish(step + 1);
      return;
    }
    if (options.evaluate && (is_last || (train.eval_every > 0 && (step + 1) % train.eval_every == 0))) {
      if (const auto record = evaluate(job, *model, sampler, step + 1, train.batch, is_last ? 0 : train.eval_batches)) {
        observer.on_eval(*record);
      }
    }
  }
  saves.finish();
  if (options.gather_parameters) {
    for (const auto& parameter : model->named_parameters()) {
      observer.on_parameter(parameter.key(), dtensor::full_tensor(parameter.value().detach()));
    }
  }
}

}  // namespace tessera::train
