#include <memory>
#include <ostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/offline/diff.h"
#include "tessera/checkpoint/offline/reshard.h"
#include "tessera/checkpoint/offline/summary.h"
#include "tessera/checkpoint/offline/values.h"
#include "tessera/checkpoint/offline/weights.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/cli/checks.h"
#include "tessera/cli/progress_bar.h"
#include "tessera/cli/verbs.h"
#include "tessera/plan/dtypes.h"
#include "tessera/train/run/hugging_face.h"

namespace tessera::cli {
namespace {

using checkpoint::OpenCheckpoint;
using checkpoint::PosixStore;
using Json = nlohmann::ordered_json;

constexpr const char* kFolder = "a checkpoint's folder; or a run's, for its newest whole checkpoint";

// What the verbs take; each its part.
struct CkptArguments {
  std::string folder, other, to, mesh, dtype;
  bool is_json = false, reads_values = false, in_slices = false;
  int64_t step = 0;
};

OpenCheckpoint open(const std::string& folder) {
  return checkpoint::open_for_reading(std::make_shared<PosixStore>(), folder);
}

bool is_step(const std::string& folder) { return checkpoint::try_step_of(checkpoint::name_of(folder)).has_value(); }

// Of all files that lie there.
int64_t bytes_in(checkpoint::Store& store, const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& name : store.list(folder).files) {
    bytes += store.try_size(checkpoint::path_in(folder, name)).value_or(0);
  }
  return bytes;
}

Json steps_of(const std::string& run) {
  PosixStore store;
  auto steps = Json::array();
  for (const auto& step : checkpoint::list_steps(store, checkpoint::steps_folder(store, run))) {
    const char* state = step.state == checkpoint::StepState::kWhole        ? "whole"
                        : step.state == checkpoint::StepState::kUnfinished ? "unfinished"
                                                                           : "damaged";
    steps.push_back({{"step", step.step}, {"folder", step.path}, {"state", state}, {"reason", step.reason}});
  }
  return steps;
}

int show(const CkptArguments& arguments, std::ostream& out) {
  auto summary = checkpoint::summary_of(open(arguments.folder));
  const auto steps = is_step(arguments.folder) ? Json::array() : steps_of(arguments.folder);
  if (arguments.is_json) {
    summary["steps"] = steps;
    out << summary.dump(2) << "\n";
    return 0;
  }
  for (const auto& step : steps) {
    const auto reason = step["reason"].get<std::string>();
    out << step["folder"].get<std::string>() << ": " << step["state"].get<std::string>()
        << (reason.empty() ? "" : ": " + reason) << "\n";
  }
  out << checkpoint::text_of_summary(summary);
  return 0;
}

// What is wrong with the damaged checkpoints of a run.
std::vector<std::string> damaged_steps(checkpoint::Store& store, const std::string& run) {
  std::vector<std::string> damage;
  for (const auto& step : checkpoint::list_steps(store, checkpoint::steps_folder(store, run))) {
    if (step.state == checkpoint::StepState::kDamaged) {
      damage.push_back(step.reason);
    }
  }
  return damage;
}

int verify(const CkptArguments& arguments, std::ostream& out) {
  const auto store = std::make_shared<PosixStore>();
  const auto folder = checkpoint::find_checkpoint(*store, arguments.folder);
  std::vector<std::string> damage;
  int64_t bytes = 0;
  {
    ProgressBar bar("verify", bytes_in(*store, folder));
    damage = checkpoint::find_damage(*store, folder, {.progress = [&](int64_t more) {
      bytes += more;
      bar.add(more);
    }});
  }
  if (damage.empty() && arguments.reads_values) {
    const auto checkpoint = open(folder);
    ProgressBar bar("values", checkpoint.catalogue.bytes());
    damage = checkpoint::find_other_values(checkpoint, bar.callback());
  }
  if (!is_step(arguments.folder)) {
    const auto others = damaged_steps(*store, arguments.folder);
    damage.insert(damage.end(), others.begin(), others.end());
  }
  if (arguments.is_json) {
    out << Json{{"folder", folder}, {"bytes", bytes}, {"damage", damage}}.dump(2) << "\n";
  } else if (damage.empty()) {
    out << folder << ": every one of its " << bytes << " bytes is as it was written"
        << (arguments.reads_values ? ", every value has its hash" : "") << "\n";
  } else {
    for (const auto& sentence : damage) {
      out << sentence << "\n";
    }
  }
  return damage.empty() ? 0 : kFailed;
}

int diff_runs(const CkptArguments& arguments, std::ostream& out) {
  ProgressBar bar("diff", 0);
  const auto found = checkpoint::diff_runs(std::make_shared<PosixStore>(), arguments.folder, arguments.other,
                                           {.reads_values = arguments.reads_values, .progress = bar.callback()});
  if (arguments.is_json) {
    out << Json{{"steps", found.steps}, {"first", found.first ? checkpoint::json_of(*found.first) : Json(nullptr)}}
               .dump(2)
        << "\n";
  } else if (found.first) {
    out << "the first step that differs, of " << found.steps.size() << " that both have, is " << found.first->step_a
        << "\n"
        << checkpoint::text_of(*found.first, found.folder_a, found.folder_b);
  } else {
    out << "the same at every step that both have, " << found.steps.size() << " in all\n";
  }
  return found.first ? kFailed : 0;
}

int diff(const CkptArguments& arguments, std::ostream& out) {
  if (!is_step(arguments.folder) && !is_step(arguments.other)) {
    return diff_runs(arguments, out);
  }
  const auto a = open(arguments.folder), b = open(arguments.other);
  checkpoint::CheckpointDifferences differences;
  {
    ProgressBar bar("diff", 0);
    differences = checkpoint::diff(a, b, {.reads_values = arguments.reads_values, .progress = bar.callback()});
  }
  out << (arguments.is_json ? checkpoint::json_of(differences).dump(2) + "\n"
                            : checkpoint::text_of(differences, a.folder, b.folder));
  return differences.is_none() ? 0 : kFailed;
}

int reshard(const CkptArguments& arguments, std::ostream& out) {
  const auto from = open(arguments.folder);
  std::string written;
  {
    ProgressBar bar("reshard", from.catalogue.bytes());
    written = checkpoint::reshard(
        from, arguments.to,
        {.mesh = layout::Mesh::parse(arguments.mesh), .in_slices = arguments.in_slices, .progress = bar.callback()});
  }
  out << written << "\n";
  return 0;
}

int export_hf(const CkptArguments& arguments, std::ostream& out) {
  const auto from = open(arguments.folder);
  {
    ProgressBar bar("export", from.catalogue.subset([](const auto& entry) { return is_of_model(entry.role); }).bytes());
    checkpoint::export_weights(from, arguments.to,
                               {.dtype = plan::try_parse_dtype(arguments.dtype), .progress = bar.callback()});
  }
  out << arguments.to << "\n";
  return 0;
}

int import_hf(const CkptArguments& arguments, std::ostream& out) {
  ProgressBar bar("import", 0);
  const auto imported = train::import_hugging_face(
      arguments.folder, arguments.to,
      {.step = arguments.step, .dtype = plan::try_parse_dtype(arguments.dtype), .progress = bar.callback()});
  const auto toml = train::to_toml(imported.config);
  const auto begin = toml.find("[model]"), end = toml.find("\n[", begin);
  out << imported.folder << "\n# its model, for the configuration of a run that begins with --init-from:\n"
      << toml.substr(begin, end == std::string::npos ? end : end + 1 - begin)
      << "[data]\nsequence = " << imported.config.data.sequence << "\n";
  return 0;
}

std::vector<Verb<CkptArguments>> add_verbs(CLI::App& app, CkptArguments& arguments) {
  std::vector<Verb<CkptArguments>> verbs;
  const auto add = [&](const char* name, const char* what, int (*run)(const CkptArguments&, std::ostream&)) {
    auto* verb = app.add_subcommand(name, what);
    verbs.push_back({verb, run});
    return verb;
  };
  const auto add_json = [&](CLI::App* verb) { verb->add_flag("--json", arguments.is_json, "print one JSON object"); };
  const auto add_dtype = [&](CLI::App* verb) {
    verb->add_option("--dtype", arguments.dtype, "of floating tensors; as they are if not given")
        ->check(CLI::IsMember({"float64", "float32", "bfloat16", "float16"}));
  };

  auto* verb = add("show", "what a checkpoint holds: files, tensors, values", show);
  verb->add_option("folder", arguments.folder, kFolder)->required();
  add_json(verb);

  verb = add("verify", "whether a checkpoint is what was written, to the last bit", verify);
  verb->add_option("folder", arguments.folder, kFolder)->required();
  verb->add_flag("--values", arguments.reads_values, "hash every tensor's value too");
  add_json(verb);

  verb = add("diff", "what differs between two checkpoints; of two runs, at the first step that differs", diff);
  verb->add_option("a", arguments.folder, kFolder)->required();
  verb->add_option("b", arguments.other, kFolder)->required();
  verb->add_flag("--values", arguments.reads_values, "read what differs: how many elements, and how far apart");
  add_json(verb);

  verb = add("reshard", "write a checkpoint anew, as the ranks of another mesh would have", reshard);
  verb->add_option("from", arguments.folder, kFolder)->required();
  verb->add_option("to", arguments.to, "the folder below which the step is written")->required();
  verb->add_option("--mesh", arguments.mesh, "dp=2,tp=4; an axis cuts what the axis of its name did")->required();
  verb->add_flag("--in-slices", arguments.in_slices, "parameters too: only tessera reads the result");

  verb = add("export-hf", "write parameters, config.json and tokenizer as transformers loads them", export_hf);
  verb->add_option("from", arguments.folder, kFolder)->required();
  verb->add_option("to", arguments.to, "a folder that is empty or not there yet")->required();
  add_dtype(verb);

  verb = add("import-hf", "make a checkpoint of a Llama or GPT-2 that transformers saved", import_hf);
  verb->add_option("from", arguments.folder, "the folder of model.save_pretrained")->required();
  verb->add_option("to", arguments.to, "the folder below which the step is written")->required();
  verb->add_option("--step", arguments.step, "that the checkpoint is of")->check(at_least(0))->capture_default_str();
  add_dtype(verb);
  return verbs;
}

}  // namespace

Command add_ckpt(CLI::App& program) {
  const auto arguments = std::make_shared<CkptArguments>();
  auto* app = program.add_subcommand("ckpt", "look at checkpoints, compare and convert them");
  return command_of(app, arguments, add_verbs(*app, *arguments));
}

}  // namespace tessera::cli
