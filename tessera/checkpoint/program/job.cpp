#include "tessera/checkpoint/program/job.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/program/file_names.h"
#include "tessera/checkpoint/program/optimizer.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/gather_texts.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/plan/module_tree.h"

namespace tessera::checkpoint {
namespace {

constexpr const char* kJob = "job";
constexpr const char* kStream = "random stream";  // of the generator `stock`
constexpr int64_t kChooser = 0;

// `fast`, or `exact` and the lattice.
std::string numerics_of_rank() {
  const auto& lattice = dtensor::RankState::require().exact.lattice();
  return lattice ? "exact " + lattice->str() : "fast";
}

std::vector<plan::NamedTensor> tensors_of(const parallel::Job& job) {
  return plan::tensors_of(plan::describe(job.model()));
}

void add_model(const std::vector<plan::NamedTensor>& tensors, Contents& contents) {
  for (const auto& named : tensors) {
    const auto role = named.is_parameter ? catalogue::Role::kParameter : catalogue::Role::kBuffer;
    contents.tensors.push_back({named.name, role, named.tensor, named.aliases});
  }
}

// Which numbers come next: those of `counter` follow from seed and step, `stock` is a stream.
void add_random(Contents& contents) {
  if (dtensor::RankState::require().random.stock()) {
    contents.tensors.push_back({kStream, catalogue::Role::kOther, dtensor::stock_generator().get_state()});
  }
}

void restore_random(const nlohmann::json& saved, const Contents& contents) {
  dtensor::manual_seed(saved.at("seed").get<uint64_t>());
  for (const auto& kept : contents.tensors) {
    if (kept.name == kStream) {
      dtensor::stock_generator().set_state(kept.tensor);
    }
  }
}

// The checkpoint that `folder` is, or the newest whole one in it, on every rank the same. Collective.
std::string choose(Store& store, const std::string& folder) {
  const auto& context = comm::RankContext::require();
  std::string chosen;
  if (context.rank == kChooser) {
    chosen = find_checkpoint(store, folder);
  }
  return comm::gather_texts(*context.world, chosen).at(kChooser);
}

void verify_numerics(const nlohmann::json& saved, const std::string& source) {
  const auto now = numerics_of_rank(), then = saved.at("numerics").get<std::string>();
  TESSERA_CHECK_AS(DataError, now == then, "[checkpoint] \"", source, "\" was saved in numerics ", then,
                   ", the job is in ", now,
                   "; accepted: the same, or LoadJobOptions::allows_other_sums, with which other bits follow");
}

// As contents_of, under the model's own names.
Contents own_contents_of(const parallel::Job& job, const catalogue::Values& extra) {
  const auto tensors = tensors_of(job);
  Contents contents;
  add_model(tensors, contents);
  if (auto* optimizer = job.options().optimizer) {
    add_optimizer({*optimizer, tensors}, contents);
  }
  add_random(contents);
  contents.values[kJob] = nlohmann::json{
      {"step", job.step()},
      {"seed", dtensor::RankState::require().random.seed()},
      {"numerics",
       numerics_of_rank()}}.dump();
  for (const auto& [name, value] : extra) {
    TESSERA_CHECK(contents.values.emplace(name, value).second, "[checkpoint] an extra value called ", name,
                  "; accepted: names but ", kJob, " and ", kOptimizer);
  }
  return contents;
}

Contents in_form_of_files(const Contents& own, const parallel::Job& job) {
  const auto& names = job.options().file_names;
  return names ? as_in_files(own, *names) : own;
}

// Fills `own`, whose form in files is `contents`.
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
  const auto saving = start_save(run, job, options, extra);
  saving->finish();
  return saving->folder();
}

catalogue::Values load(const std::string& folder, parallel::Job& job, LoadJobOptions options) {
  const auto store = std::make_shared<PosixStore>();
  const auto checkpoint = open_for_ranks(store, choose(*store, folder));
  const auto& values = checkpoint.catalogue.values();
  const bool has_job = values.contains(kJob);
  TESSERA_CHECK_AS(DataError, has_job, "[checkpoint] \"", checkpoint.folder,
                   "\" was not saved of a job; accepted: one that save(run, job) wrote");
  const auto saved = nlohmann::json::parse(values.at(kJob));
  if (!options.allows_other_sums) {
    verify_numerics(saved, checkpoint.folder);
  }
  const auto tensors = tensors_of(job);
  auto* optimizer = job.options().optimizer;
  if (optimizer != nullptr) {
    prepare_optimizer({*optimizer, tensors}, checkpoint.catalogue, checkpoint.folder);
  }
  const Contents own = own_contents_of(job, {});
  const Contents contents = in_form_of_files(own, job);
  verify_form(values, contents, checkpoint.folder);
  const LoadOptions fit{.allows_extra = optimizer == nullptr};  // its moments
  verify_fits(checkpoint, contents, fit);
  if (optimizer != nullptr) {
    verify_groups({*optimizer, tensors}, values.at(kOptimizer), checkpoint.folder);
  }
  load_tensors(checkpoint, contents, own, job, fit);
  if (optimizer != nullptr) {
    restore_optimizer({*optimizer, tensors}, values.at(kOptimizer));
  }
  restore_random(saved, contents);
  job.set_step(saved.at("step").get<int64_t>());
  return values;
}

void load_model(const std::string& folder, parallel::Job& job) {
  const auto store = std::make_shared<PosixStore>();
  const auto checkpoint = open_for_ranks(store, choose(*store, folder));
  Contents own;
  add_model(tensors_of(job), own);
  const Contents contents = in_form_of_files(own, job);
  verify_form(checkpoint.catalogue.values(), contents, checkpoint.folder);
  load_tensors(checkpoint, contents, own, job, {.allows_extra = true});
}

}  // namespace tessera::checkpoint
