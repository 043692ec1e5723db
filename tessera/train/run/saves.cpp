#include "tessera/train/run/saves.h"

#include <filesystem>

#include <ATen/ops/full.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/core/context.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

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

bool has_checkpoints(const std::string& run) { return fs::is_directory(checkpoints_folder(run)); }

std::vector<checkpoint::StepFolder> checkpoints_of(const std::string& run) {
  checkpoint::PosixStore store;
  return has_checkpoints(run) ? checkpoint::list_steps(store, checkpoints_folder(run))
                              : std::vector<checkpoint::StepFolder>();
}

// The whole ones, newest first, and what is wrong with damaged ones that are newer.
ResumePlan plan_of(const std::vector<checkpoint::StepFolder>& steps) {
  ResumePlan plan;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->state == checkpoint::StepState::kWhole) {
      plan.points.push_back({step->path, step->step});
    } else if (step->state == checkpoint::StepState::kDamaged && plan.points.empty()) {
      plan.skipped.push_back("\"" + step->path + "\" is damaged: " + step->reason);
    }
  }
  return plan;
}

// Gives a damaged checkpoint a name that is no step's, so that the step can be saved again.
void set_aside(const std::string& folder) {
  const auto path = checkpoint::path_in(checkpoint::folder_of(folder), "damaged_" + checkpoint::name_of(folder));
  auto target = path;
  for (int64_t i = 2; fs::exists(target); ++i) {
    target = path + "_" + std::to_string(i);
  }
  std::error_code failed;
  fs::rename(folder, target, failed);
  TESSERA_CHECK_AS(DataError, !failed, "[train] cannot move the damaged checkpoint \"", folder, "\" to \"", target,
                   "\": ", failed.message(), "; accepted: a folder that may be written to");
}

// As resume(), from one checkpoint.
void resume_from(const std::string& folder, parallel::Job& job, const Config& config, const data::Sampler& sampler) {
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

}  // namespace

std::string checkpoints_folder(const std::string& run) { return checkpoint::path_in(run, checkpoint::kCheckpoints); }

ResumePlan find_resume_plan(const std::string& resume, const std::string& run) {
  if (resume == kAuto) {
    auto plan = plan_of(checkpoints_of(run));
    TESSERA_CHECK_AS(DataError, !plan.points.empty() || plan.skipped.empty(), "[train] --resume auto finds no whole ",
                     "checkpoint in \"", run, "\": ", base::join(plan.skipped, "; "),
                     "; accepted: --resume with the folder of another one, or --replace to begin again");
    return plan;
  }
  checkpoint::PosixStore store;
  const auto folder = checkpoint::find_checkpoint(store, resume);
  return {.points = {{folder, checkpoint::open_checkpoint(store, folder).save.step}}};
}

void remove_checkpoints(const std::string& run) {
  checkpoint::PosixStore store;
  for (const auto& step : checkpoints_of(run)) {
    checkpoint::remove_step(store, step.path);
  }
}

void make_way(const std::string& run) {
  const auto steps = checkpoints_of(run);
  for (auto step = steps.rbegin(); step != steps.rend() && step->state != checkpoint::StepState::kWhole; ++step) {
    if (step->state == checkpoint::StepState::kDamaged) {
      set_aside(step->path);
    }
  }
  checkpoint::PosixStore store;
  if (has_checkpoints(run)) {
    checkpoint::remove_unfinished(store, checkpoints_folder(run));
  }
}

void resume(const std::vector<ResumePoint>& points, parallel::Job& job, const Config& config,
            const data::Sampler& sampler,
            const std::function<void(const std::string&, const ResumePoint&)>& on_damage) {
  std::vector<std::string> damage;
  for (const auto& point : points) {
    try {
      resume_from(point.folder, job, config, sampler);
    } catch (const checkpoint::Damaged& error) {  // on every rank
      damage.push_back(base::message_of(error));
      continue;
    }
    for (size_t i = 0; i < damage.size(); ++i) {
      if (comm::RankContext::require().rank == 0) {
        set_aside(points[i].folder);
      }
      on_damage(damage[i], point);
    }
    return;
  }
  TESSERA_CHECK_AS(DataError, damage.empty(), base::join(damage, " "));
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
