#include "tessera/train/run/loop.h"

#include <chrono>
#include <optional>

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/optim/state_file.h"
#include "tessera/parallel/job.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/train/run/placed_run.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<at::Tensor> tensors_of(const data::Batch& batch) { return {batch.tokens, batch.targets}; }

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
StepRecord train_step(PlacedRun& run, const data::Sampler& sampler, int64_t step, Observer& observer) {
  const auto start = Clock::now();
  observer.on_begin(step + 1);
  auto record = run.step(
      step, [&](int64_t begin, int64_t end) { return tensors_of(sampler.rows(step, begin, end - begin)); },
      [&] { observer.on_update(); });
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
  PlacedRun run(config);
  const auto& model = run.model();
  auto& job = run.job();
  if (!options.resume_from.empty()) {
    resume(options.resume_from, job, config, sampler,
           [&](const std::string& what, const ResumePoint& next) { observer.on_damage(what, next); });
  } else if (!options.init_from.empty()) {
    checkpoint::load_model(options.init_from, job);
  }
  Saves saves(options.saves, config, sampler);
  const Training training{model, run.plan(), run.optimizer()};
  observer.on_start(training);

  std::optional<optim::StateFile> state_file;
  if (!config.offload.state.empty()) {
    state_file.emplace(config.offload.state);
  }
  const auto steps = options.steps > 0 ? std::min(options.steps, train.steps) : train.steps;
  for (int64_t step = job.step(); step < steps; ++step) {
    comm::throw_if_stopped();
    observer.on_step(train_step(run, sampler, step, observer), training);
    if (state_file) {
      state_file->keep(parallel::state_of(run.optimizer()));
    }
    const bool is_last = step + 1 == steps;
    if (saves.after_step(job, step + 1, steps) && !is_last) {
      saves.finish();
      observer.on_finish(step + 1);
      return;
    }
    if (options.evaluate && (is_last || (train.eval_every > 0 && (step + 1) % train.eval_every == 0))) {
      if (const auto record =
              evaluate(job, run.model(), sampler, step + 1, train.batch, is_last ? 0 : train.eval_batches)) {
        observer.on_eval(*record);
      }
    }
  }
  saves.finish();
  if (options.gather_parameters) {
    for (const auto& parameter : model.named_parameters()) {
      observer.on_parameter(parameter.key(), dtensor::full_tensor(parameter.value().detach()));
    }
  }
}

}  // namespace tessera::train
