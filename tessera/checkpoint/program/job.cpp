#include "tessera/checkpoint/program/job.h"

#include "tessera/checkpoint/program/optimizer.h"
#include "tessera/checkpoint/program/run_state.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/plan/module_tree.h"

namespace tessera::checkpoint {
namespace {

std::vector<plan::NamedTensor> tensors_of(const parallel::Job& job) {
  return plan::tensors_of(plan::describe(job.model()));
}

}  // namespace

Contents contents_of(const parallel::Job& job, const catalogue::Values& extra) {
  const auto tensors = tensors_of(job);
  Contents contents;
  add_model(tensors, contents);
  if (auto* optimizer = job.options().optimizer) {
    add_optimizer({*optimizer, tensors}, contents);
  }
  add_run_state(job.step(), contents);
  add_values(extra, contents);
  return contents;
}

std::unique_ptr<Saving> start_save(const std::string& run, const parallel::Job& job, const SaveOptions& options,
                                   const catalogue::Values& extra) {
  return start_save(std::make_shared<PosixStore>(), run, job.step(), contents_of(job, extra), options);
}

std::string save(const std::string& run, const parallel::Job& job, const SaveOptions& options,
                 const catalogue::Values& extra) {
  const auto saving = start_save(run, job, options, extra);
  saving->finish();
  return saving->folder();
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
  Contents contents;
  add_model(tensors, contents);
  if (optimizer != nullptr) {
    prepare_optimizer({*optimizer, tensors}, checkpoint.catalogue, checkpoint.folder);
    add_optimizer({*optimizer, tensors}, contents);
  }
  verify_program(checkpoint, contents, optimizer != nullptr);
  if (optimizer != nullptr) {
    verify_groups({*optimizer, tensors}, values.at(kOptimizer), checkpoint.folder);
  }
  add_stream(checkpoint, contents);
  load_tensors(checkpoint, contents, {.allows_extra = true});  // moments that nobody wants
  if (optimizer != nullptr) {
    restore_optimizer({*optimizer, tensors}, values.at(kOptimizer));
  }
  job.set_step(restore_run_state(checkpoint, contents));
  return values;
}

}  // namespace tessera::checkpoint
