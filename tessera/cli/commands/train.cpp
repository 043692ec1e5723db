#include <CLI/CLI.hpp>

#include "tessera/cli/checks.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_options.h"
#include "tessera/train/run/trainer.h"

namespace tessera::cli {
namespace {

struct TrainArguments {
  PlacedOptions config;
  std::string metrics, ledger, folder, profile, resume, init_from;
  int64_t save_every = 0, keep = 2;
  bool replaces = false, is_quiet = false;
};

int run_train(const TrainArguments& arguments, std::ostream& out) {
  const auto result = train::train(arguments.config.read(), {
                                                                .metrics = arguments.metrics,
                                                                .ledger = arguments.ledger,
                                                                .folder = arguments.folder,
                                                                .replace = arguments.replaces,
                                                                .save_every = arguments.save_every,
                                                                .keep = arguments.keep,
                                                                .resume = arguments.resume,
                                                                .init_from = arguments.init_from,
                                                                .profile = arguments.profile,
                                                                .out = arguments.is_quiet ? nullptr : &out,
                                                            });
  return result.proof && !result.proof->holds() ? kFailed : 0;
}

}  // namespace

Command add_train(CLI::App& program) {
  const auto arguments = std::make_shared<TrainArguments>();
  auto* app = program.add_subcommand("train", "train a language model on a text");
  arguments->config.add_to(*app);
  app->add_option("--steps", arguments->config.steps, "train.steps");
  app->add_option("--metrics", arguments->metrics, "JSONL file, one object a step");
  app->add_option("--ledger", arguments->ledger,
                  "JSON file: bytes and calls by axis, collective and op, of every rank");
  app->add_option("--out", arguments->folder, "run folder: the model, metrics.jsonl, tb/ for TensorBoard, trace/");
  app->add_flag("--replace", arguments->replaces,
                "write over the run that the folder of --out holds, which is refused otherwise");
  auto* saves = app->add_option("--save-every", arguments->save_every,
                                "steps between checkpoints in --out; one after the last too")
                    ->check(at_least(0));
  app->add_option("--keep", arguments->keep, "checkpoints that stay, the newest; 0: all")
      ->check(at_least(0))
      ->needs(saves)
      ->capture_default_str();
  app->add_option(
      "--resume", arguments->resume,
      "auto: go on from the newest checkpoint of --out, if it has one; or a run's folder, or a checkpoint's");
  app->add_option("--init-from", arguments->init_from,
                  "a checkpoint or a run's folder: begin with its parameters; of ckpt import-hf too");
  app->add_option("--profile", arguments->profile,
                  "steps such as 3-5: their trace goes to trace/steps_3-5.json of --out");
  app->add_flag("--quiet", arguments->is_quiet, "no progress lines");
  return {app, [arguments](std::ostream& out, std::ostream&) { return run_train(*arguments, out); }};
}

}  // namespace tessera::cli
