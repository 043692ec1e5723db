#include "tessera/train/run/saves.h"

#include <filesystem>

#include <ATen/ops/full.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/core/context.h"

namespace tessera::train {
namespace {

constexpr const char* kData = "data";
constexpr const char* kAuto = "auto";

// What the samples of a step follow from.
nlohmann::json data_of(const Config& config, const data::Sampler& sampler) {
  const auto& corpus = sampler.corpus();
  return {{"train.batch", config.train.batch},
          {"train.seed", config.train.seed},
          {"data.sequence", config.data.sequence},
          {"tokens to train on", corpus.train().size()},
          {"tokens held out", corpus.held_out().size()}};
}

// Whether it is so on any rank. Collective.
bool is_any(bool here) {
  const auto count = at::full({1}, static_cast<int64_t>(here), at::TensorOptions().dtype(at::kLong));
  comm::RankContext::require().world->all_reduce(count, comm::ReduceOp::kMax)->wait();
  return count.item<int64_t>() != 0;
}

bool has_checkpoints(const std::string& run) { return std::filesystem::is_directory(checkpoints_folder(run)); }

}  // namespace

std::string checkpoints_folder(const std::string& run) { return checkpoint::path_in(run, checkpoint::kCheckpoints); }

std::optional<ResumePoint> find_resume_point(const std::string& resume, const std::string& run) {
  checkpoint::PosixStore store;
  if (resume == kAuto) {
    const auto newest = has_checkpoints(run) ? checkpoint::newest_whole(store, checkpoints_folder(run)) : std::nullopt;
    return newest ? std::optional(ResumePoint{newest->path, newest->step}) : std::nullopt;
  }
  const auto folder = checkpoint::find_checkpoint(store, resume);
  return ResumePoint{folder, checkpoint::open_checkpoint(store, folder).save.step};
}

void remove_checkpoints(const std::string& run) {
  checkpoint::PosixStore store;
  if (has_checkpoints(run)) {
    for (const auto& step : checkpoint::list_steps(store, checkpoints_folder(run))) {
      checkpoint::remove_step(store, step.path);
    }
  }
}

void remove_unfinished_checkpoints(const std::string& run) {
  checkpoint::PosixStore store;
  if (has_checkpoints(run)) {
    checkpoint::remove_unfinished(store, checkpoints_folder(run));
  }
}

void resume(const std::string& folder, parallel::Job& job, const Config& config, const data::Sampler& sampler) {
  const auto values = checkpoint::load(folder, job);
  const auto found = values.find(kData);
  const auto then = found == values.end() ? nlohmann::json::object() : nlohmann::json::parse(found->second);
  const auto now = data_of(config, sampler);
  for (const auto& [name, value] : now.items()) {
    const auto before = then.contains(name) ? then.at(name).dump() : "not known";
    TESSERA_CHECK_AS(DataError, before == value.dump(), "[train] \"", folder, "\" was trained with ", name, " ", before,
                     ", the configuration has ", value.dump(), "; accepted: the same, so that the samples go on");
  }
}

Saves::Saves(SavePolicy policy, const Config& config, const data::Sampler& sampler)
    : policy_(std::move(policy)),
      values_{{kData, data_of(config, sampler).dump()}},
      finishes_before_(comm::finish_requests()) {
  if (!policy_.folder.empty()) {
    finishes_.emplace();
  }
}

bool Saves::after_step(const parallel::Job& job, int64_t step, int64_t steps) {
  if (policy_.folder.empty()) {
    return false;
  }
  if (saving_) {
    saving_->check();
  }
  const bool ends = is_any(comm::finish_requests() != finishes_before_);
  if (ends || step == steps || (policy_.every > 0 && step % policy_.every == 0)) {
    finish();
    saving_ = checkpoint::start_save(policy_.folder, job, {.keep = policy_.keep, .files = policy_.files}, values_);
  }
  return ends;
}

void Saves::finish() {
  if (saving_) {
    saving_->finish();
    saving_.reset();
  }
}

}  // namespace tessera::train
