#include "tessera/checkpoint/folder/steps.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/names.h"

namespace tessera::checkpoint {
namespace {

bool has_manifest(Store& store, const std::string& folder) {
  const auto path = path_in(folder, kManifest);
  return store.try_size(path) && has_seal(read_all(store, path));
}

// The steps that there are, descending.
std::vector<int64_t> steps_of(Store& store, const std::string& run) {
  std::vector<int64_t> steps;
  for (const auto& name : store.list(run).folders) {
    if (const auto step = try_step_of(name)) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// Of a run's steps, none of them whole.
std::string what_they_lack(const std::vector<StepFolder>& steps) {
  std::vector<std::string> each;
  for (const auto& step : steps) {
    each.push_back("\"" + step.path + "\": " + step.reason);
  }
  return each.empty() ? "" : " (" + base::join(each, "; ") + ")";
}

// Whether the folder, older than `whole_above` whole ones, is to go.
bool is_outlived(const StepFolder& folder, int64_t whole_above, int64_t keep) {
  switch (folder.state) {
    case StepState::kUnfinished: return whole_above >= 1;
    case StepState::kWhole:
    case StepState::kDamaged: return whole_above >= keep;
  }
  return false;
}

}  // namespace

StepFolder look_at_step(Store& store, const std::string& folder, int64_t step) {
  StepFolder found{.step = step, .path = folder};
  if (!has_manifest(store, folder)) {
    found.reason = "it has no complete " + std::string(kManifest);
    return found;
  }
  try {
    open_checkpoint(store, folder);
    found.state = StepState::kWhole;
  } catch (const DataError& error) {
    found.state = StepState::kDamaged;
    found.reason = base::message_of(error);
  }
  return found;
}

void verify_step(const Manifest& manifest, const std::string& folder) {
  const auto step = try_step_of(name_of(folder));
  TESSERA_CHECK_AS(DataError, !step || *step == manifest.save.step, "[checkpoint] \"", path_in(folder, kManifest),
                   "\" is of step ", manifest.save.step, ", its folder of step ", *step,
                   "; accepted: the manifest of this folder");
}

Manifest open_checkpoint(Store& store, const std::string& folder) {
  const auto path = path_in(folder, kManifest);
  auto manifest = read_manifest(read_all(store, path), path);
  verify_step(manifest, folder);
  for (const auto& file : manifest.files) {
    const auto size = store.try_size(path_in(folder, file.name));
    TESSERA_CHECK_AS(DataError, size, "[checkpoint] \"", path_in(folder, file.name), "\" is missing",
                     "; accepted: a complete checkpoint");
    TESSERA_CHECK_AS(DataError, *size == file.size, "[checkpoint] \"", path_in(folder, file.name), "\" has ", *size,
                     " bytes, ", kManifest, " says ", file.size, "; accepted: a complete checkpoint");
  }
  return manifest;
}

std::vector<StepFolder> list_steps(Store& store, const std::string& run) {
  std::vector<StepFolder> all;
  for (const auto step : steps_of(store, run)) {
    all.push_back(look_at_step(store, step_folder(run, step), step));
  }
  std::reverse(all.begin(), all.end());
  return all;
}

std::optional<StepFolder> newest_whole(Store& store, const std::string& run) {
  for (const auto step : steps_of(store, run)) {
    if (auto found = look_at_step(store, step_folder(run, step), step); found.state == StepState::kWhole) {
      return found;
    }
  }
  return std::nullopt;
}

std::string steps_folder(Store& store, const std::string& folder) {
  const auto folders = store.list(folder).folders;
  const bool is_below = std::find(folders.begin(), folders.end(), kCheckpoints) != folders.end();
  return is_below ? path_in(folder, kCheckpoints) : folder;
}

std::string find_checkpoint(Store& store, const std::string& folder) {
  const auto named = folder.substr(0, folder.find_last_not_of('/') + 1);
  if (try_step_of(name_of(named))) {
    return named;
  }
  const auto run = steps_folder(store, named);
  const auto newest = newest_whole(store, run);
  TESSERA_CHECK_AS(DataError, newest, "[checkpoint] \"", folder, "\" has no whole checkpoint",
                   what_they_lack(list_steps(store, run)),
                   "; accepted: the folder of a run that has saved a step, or of a step");
  return newest->path;
}

std::vector<std::string> prune(Store& store, const std::string& run, const PruneOptions& options) {
  TESSERA_CHECK(options.keep >= 1, "[checkpoint] keep ", options.keep, " checkpoints; accepted: at least 1");
  std::vector<std::string> removed;
  int64_t whole = 0;
  for (const auto step : steps_of(store, run)) {
    const auto folder = look_at_step(store, step_folder(run, step), step);
    if (is_outlived(folder, whole, options.keep) && options.writing != step) {
      remove_step(store, folder.path);
      removed.push_back(folder.path);
    }
    whole += folder.state == StepState::kWhole ? 1 : 0;
  }
  if (!removed.empty()) {
    store.sync_folder(run);
  }
  return removed;
}

std::vector<std::string> remove_unfinished(Store& store, const std::string& run) {
  std::vector<std::string> removed;
  for (const auto step : steps_of(store, run)) {
    if (const auto folder = step_folder(run, step); !has_manifest(store, folder)) {
      remove_step(store, folder);
      removed.push_back(folder);
    }
  }
  if (!removed.empty()) {
    store.sync_folder(run);
  }
  return removed;
}

void remove_step(Store& store, const std::string& folder) {
  const auto files = store.list(folder).files;
  const auto round_of = [](const std::string& name) { return name == kManifest ? 0 : name == kClaim ? 2 : 1; };
  for (const int round : {0, 1, 2}) {
    for (const auto& name : files) {
      if (round_of(name) == round) {
        store.remove(path_in(folder, name));
      }
    }
    store.sync_folder(folder);
  }
  store.remove_folder(folder);
}

}  // namespace tessera::checkpoint
