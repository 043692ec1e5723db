#include "tessera/checkpoint/program/job.h"

#include <filesystem>
#include <optional>

#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/program/file_names.h"
#include "tessera/checkpoint/program/optimizer.h"
#include "tessera/checkpoint/program/run_state.h"
#include "tessera/checkpoint/program/shared_state.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/plan/module_tree.h"

namespace tessera::checkpoint {
namespace {

std::vector<plan::NamedTensor> tensors_of(const parallel::Job& job) {
  return plan::tensors_of(plan::describe(job.model()));
}

// As contents_of, under the model's own names.
Contents own_contents_of(const parallel::Job& job, const catalogue::Values& extra) {
  const auto tensors = tensors_of(job);
  Contents contents;
  add_model(tensors, contents);
  if (auto* optimizer = job.options().optimizer) {
    const SharedState shared(*optimizer);
    add_optimizer({*optimizer, tensors}, contents);
  }
  if (const auto* scaler = job.options().loss_scaler) {
    add_loss_scaler(*scaler, contents);
  }
  add_run_state(job.step(), contents);
  add_values(extra, contents);
  return contents;
}

Contents in_form_of_files(const Contents& own, const parallel::Job& job) {
  const auto& names = job.options().file_names;
  return names ? as_in_files(own, *names) : own;
}

// Fills `own`, whose form in files begins `contents`.
void load_tensors(const OpenCheckpoint& checkpoint, const Contents& contents, const Contents& own,
                  const parallel::Job& job, LoadOptions fit) {
  load_tensors(checkpoint, contents, fit);
  if (const auto& names = job.options().file_names) {
    take_from_files(contents, own, *names);
  }
}

}  // namespace

Contents contents_of(const parallel::Job& job, const catalogue::Values& extra) {
  return in_form_of_files(own_contents_of(job, extra), job);
}

std::unique_ptr<Saving> start_save(const std::string& run, const parallel::Job& job, const SaveOptions& options,
                                   const catalogue::Values& extra) {
  return start_save(std::make_shared<PosixStore>(), run, job.step(), contents_of(job, extra), options);
}

std::string save(const std::string& run, const parallel::Job& job, const SaveOptions& options,
                 const catalogue::Values& extra) {
  return save(std::make_shared<PosixStore>(), run, job.step(), contents_of(job, extra), options);
}

catalogue::Values load(const std::string& folder, parallel::Job& job, LoadJobOptions options) {
  const auto checkpoint = open_run(std::make_shared<PosixStore>(), folder);
  const auto& values = checkpoint.catalogue.values();
  if (!options.allows_other_sums) {
    verify_numerics(checkpoint);
    verify_generator(checkpoint);
  }
  const auto tensors = tensors_of(job);
  auto* optimizer = job.options().optimizer;
  Contents own;
  add_model(tensors, own);
  std::optional<SharedState> shared;
  if (optimizer != nullptr) {
    shared.emplace(*optimizer, /*is_empty=*/true);
    prepare_optimizer({*optimizer, tensors}, checkpoint.catalogue, checkpoint.folder);
    add_optimizer({*optimizer, tensors}, own);
  }
  Contents contents = in_form_of_files(own, job);
  verify_form(values, contents, checkpoint.folder);
  verify_program(checkpoint, contents, optimizer != nullptr);
  if (optimizer != nullptr) {
    verify_groups({*optimizer, tensors}, values.at(kOptimizer), checkpoint.folder);
  }
  add_stream(checkpoint, contents);
  load_tensors(checkpoint, contents, own, job, {.allows_extra = true});  // moments that nobody wants
  if (optimizer != nullptr) {
    restore_optimizer({*optimizer, tensors}, values.at(kOptimizer));
    shared->take();
  }
  if (auto* scaler = job.options().loss_scaler) {
    restore_loss_scaler(checkpoint, *scaler);
  }
  job.set_step(restore_run_state(checkpoint, contents));
  return values;
}

void load_model(const std::string& folder, parallel::Job& job) {
  const auto checkpoint = open_newest(std::make_shared<PosixStore>(), folder);
  Contents own;
  add_model(tensors_of(job), own);
  const Contents contents = in_form_of_files(own, job);
  verify_form(checkpoint.catalogue.values(), contents, checkpoint.folder);
  load_tensors(checkpoint, contents, own, job, {.allows_extra = true});
}

std::vector<std::string> remove_unfinished(const std::string& run) {
  const auto removed = read_on_one([&] {
    PosixStore store;
    const bool has_run = std::filesystem::is_directory(run);
    return base::join(has_run ? remove_unfinished(store, steps_folder(store, run)) : std::vector<std::string>(), "\n");
  });
  return removed.empty() ? std::vector<std::string>() : base::split(removed, '\n');
}

}  // namespace tessera::checkpoint
