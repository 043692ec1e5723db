#include "tessera/cli/cli.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <ostream>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/info.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/local.h"
#include "tessera/parallel/deferred.h"
#include "tessera/trace/parting.h"
#include "tessera/train/compare/bit_compare.h"
#include "tessera/train/compare/compare.h"
#include "tessera/train/run/explain_step.h"
#include "tessera/train/run/run_folder.h"
#include "tessera/train/run/setup.h"
#include "tessera/train/run/trainer.h"

namespace tessera::cli {
namespace {

constexpr int kFailed = 1, kUsage = 2, kStopped = 130;

// What the command line says.
struct Arguments {
  std::string config;
  std::vector<std::string> sets;
  std::vector<std::string> meshes;
  std::optional<int64_t> ranks, steps, seed;
  std::string dtype, numerics, lattice;
  std::string metrics, ledger, folder, profile;
  double tolerance = 0;
  bool is_quiet = false;
  bool replaces = false;
  bool is_json = false;
  std::string run, prompt;
  train::GenerateOptions generate;
  std::vector<std::string> command;
  std::string log_dir;
  std::vector<std::string> flights;
  double grace = 5;
  int64_t step = 2, rank = 0;
  size_t width = 160;
};

// Asks all ranks to stop at the first SIGINT or SIGTERM, while it lives; a second one kills.
class StopOnSignal {
 public:
  StopOnSignal() {
    for (const int signal : kSignals) {
      std::signal(signal, [](int received) {
        std::signal(received, SIG_DFL);
        comm::request_stop();
      });
    }
  }
  ~StopOnSignal() {
    for (const int signal : kSignals) {
      std::signal(signal, SIG_DFL);
    }
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
};

void add_config_options(CLI::App& command, Arguments& arguments) {
  command.add_option("config", arguments.config, "TOML file, such as examples/llama.toml")->required();
  command.add_option("--dtype", arguments.dtype, "float32 or float64: train.dtype");
  command.add_option("--numerics", arguments.numerics, "exact or fast: train.numerics");
  command.add_option("--lattice", arguments.lattice, "batch=8,sequence=1,feature=8: train.lattice, of numerics exact");
  command.add_option("--seed", arguments.seed, "train.seed");
  command.add_option("--set", arguments.sets, "section.key=value: change one field; may be repeated")
      ->allow_extra_args(false);
}

void add_layout_options(CLI::App& command, Arguments& arguments) {
  command.add_option("--mesh", arguments.meshes, "dp=2,tp=2: parallel.mesh; sets the number of ranks too")->expected(1);
  command.add_option("--ranks", arguments.ranks, "parallel.ranks; without --mesh the mesh is chosen");
}

std::unique_ptr<CLI::App> make_app(Arguments& arguments) {
  auto app = std::make_unique<CLI::App>("tessera: one program, any mesh, the one-device curve", "tessera");
  app->require_subcommand(1);
  auto* train = app->add_subcommand("train", "train a language model on a text");
  add_config_options(*train, arguments);
  add_layout_options(*train, arguments);
  train->add_option("--steps", arguments.steps, "train.steps");
  train->add_option("--metrics", arguments.metrics, "JSONL file, one object a step");
  train->add_option("--ledger", arguments.ledger,
                    "JSON file: bytes and calls by axis, collective and op, of every rank");
  train->add_option("--out", arguments.folder, "run folder: the model, metrics.jsonl, tb/ for TensorBoard, trace/");
  train->add_flag("--replace", arguments.replaces,
                  "write over the run that the folder of --out holds, which is refused otherwise");
  train->add_option("--profile", arguments.profile,
                    "steps such as 3-5: their trace goes to trace/steps_3-5.json of --out");
  train->add_flag("--quiet", arguments.is_quiet, "no progress lines");

  auto* compare = app->add_subcommand(
      "compare", "train on several layouts and compare every number (exact: every bit) with the first");
  add_config_options(*compare, arguments);
  compare
      ->add_option("--mesh", arguments.meshes,
                   "a layout, at least twice: 1, dp=2,tp=2, \"tp=2;sp;regather;accumulate=2;section.key=value\"")
      ->allow_extra_args(false);
  compare->add_option("--steps", arguments.steps, "steps of the configuration's schedule, 20 if not given");
  compare->add_option("--tolerance", arguments.tolerance, "largest relative error; by the dtype if not given");
  compare->add_flag("--json", arguments.is_json, "print one JSON object");

  auto* plan = app->add_subcommand("plan", "print the plan for a configuration as JSON");
  add_config_options(*plan, arguments);
  add_layout_options(*plan, arguments);

  auto* explain =
      app->add_subcommand("explain", "say what every operator of a step does: layouts, redistributions, bytes, time");
  add_config_options(*explain, arguments);
  add_layout_options(*explain, arguments);
  explain->add_option("--step", arguments.step, "which, counted from 1; 2 if not given, as the first one also plans");
  explain->add_option("--rank", arguments.rank, "of which rank, 0 if not given");
  explain->add_option("--width", arguments.width, "longest line, 160 if not given");
  explain->add_flag("--json", arguments.is_json, "print one JSON object");

  auto* launch = app->add_subcommand(
      "launch", "start local processes, one for each rank: tessera launch -n 4 -- train FILE, or -- python train.py");
  launch->add_option("-n,--ranks", arguments.ranks, "how many")->required();
  launch->add_option("--log-dir", arguments.log_dir, "a folder for one file a rank");
  launch->add_option("--grace", arguments.grace, "seconds that ranks may take to end when one has failed")
      ->check(CLI::NonNegativeNumber);
  launch->add_option("command", arguments.command, "after --: a command of tessera, or any program, with its arguments")
      ->required();

  auto* generate = app->add_subcommand("generate", "continue a text with a trained model");
  generate->add_option("run", arguments.run, "folder of `tessera train --out`, or a model.safetensors in one")
      ->required();
  generate->add_option("--prompt", arguments.prompt, "the text to continue")->required();
  generate->add_option("--max-tokens", arguments.generate.max_tokens, "stop after so many, 200 if not given");
  generate->add_option("--temperature", arguments.generate.temperature,
                       "0.8 if not given; 0: always the likeliest token");
  generate->add_option("--top-k", arguments.generate.top_k, "only among the k likeliest tokens; 0: all");
  generate->add_option("--top-p", arguments.generate.top_p,
                       "only among the likeliest tokens of this probability together");
  generate->add_option("--seed", arguments.generate.seed, "of the draws, 0 if not given");

  auto* trace = app->add_subcommand("trace", "say where the ranks of a run that failed parted");
  trace
      ->add_option("flights", arguments.flights,
                   "what the ranks left: flight_rank_*.json, the run's folder, or that of --log-dir")
      ->required();

  app->add_subcommand("info", "print versions, cores and threads");
  return app;
}

// The file, with what the command line changes.
train::Config config_of(const Arguments& arguments) {
  auto config = train::read_config(arguments.config);
  for (const auto& set : arguments.sets) {
    train::set_field(config, set);
  }
  const auto set = [&](const char* field, const auto& value) { train::set_field(config, c10::str(field, "=", value)); };
  if (arguments.seed) {
    set("train.seed", *arguments.seed);
  }
  for (const auto& [field, text] : {std::pair("train.dtype", &arguments.dtype),
                                    {"train.numerics", &arguments.numerics},
                                    {"train.lattice", &arguments.lattice}}) {
    if (!text->empty()) {
      set(field, *text);
    }
  }
  return config;
}

// Under a launcher the number of processes decides, unless a mesh does.
void place_launched(train::Config& config) {
  const auto place = launch::find_place();
  if (place && config.parallel.mesh.empty()) {
    train::set_field(config, c10::str("parallel.ranks=", place->size));
  }
}

// For train and plan: --mesh without --ranks takes as many ranks as it has, and the other way round.
train::Config placed_config_of(const Arguments& arguments) {
  auto config = config_of(arguments);
  if (!arguments.meshes.empty() || arguments.ranks) {
    config.parallel.mesh = arguments.meshes.empty() ? "" : layout::Mesh::parse(arguments.meshes.front()).str();
    train::set_field(config, c10::str("parallel.ranks=", arguments.ranks.value_or(0)));
  } else {
    place_launched(config);
  }
  if (arguments.steps) {
    train::set_field(config, c10::str("train.steps=", *arguments.steps));
  }
  train::verify_run(config);
  return train::with_vocabulary(config);
}

int run_train(const Arguments& arguments, std::ostream& out) {
  const auto result = train::train(placed_config_of(arguments), {
                                                                    .metrics = arguments.metrics,
                                                                    .ledger = arguments.ledger,
                                                                    .folder = arguments.folder,
                                                                    .replace = arguments.replaces,
                                                                    .profile = arguments.profile,
                                                                    .out = arguments.is_quiet ? nullptr : &out,
                                                                });
  return result.proof && !result.proof->holds() ? kFailed : 0;
}

int run_compare(const Arguments& arguments, std::ostream& out) {
  const auto base = train::with_vocabulary(config_of(arguments));
  std::vector<train::Side> sides;
  for (const auto& mesh : arguments.meshes) {
    sides.push_back(train::parse_side(base, mesh));
  }
  const auto print = [&](const auto& comparison) {
    out << (arguments.is_json ? comparison.json() + "\n" : comparison.text());
  };
  const auto steps = arguments.steps.value_or(20);
  if (train::are_exact(sides)) {
    TESSERA_CHECK_AS(ConfigError, arguments.tolerance == 0, "[compare] --tolerance ", arguments.tolerance,
                     " with numerics exact, which has none; accepted: leave it out, or --numerics fast");
    const auto comparison = train::compare_bits(sides, steps);
    print(comparison);
    return comparison.is_same() ? 0 : kFailed;
  }
  const auto comparison = train::compare(sides, {.steps = steps, .tolerance = arguments.tolerance});
  print(comparison);
  return comparison.is_inside() ? 0 : kFailed;
}

int run_plan(const Arguments& arguments, std::ostream& out) {
  const auto config = placed_config_of(arguments);
  const auto model = parallel::deferred([&] { return train::make_model(config); });
  out << train::make_plan(config, *model).json();
  return 0;
}

int run_explain(const Arguments& arguments, std::ostream& out) {
  const auto report = train::explain_step(placed_config_of(arguments), arguments.step, arguments.rank);
  out << (arguments.is_json ? report.json() + "\n" : report.text(arguments.width));
  return 0;
}

std::vector<std::string> own_commands() {
  Arguments unused;
  const auto app = make_app(unused);
  std::vector<std::string> names;
  for (const auto* command : app->get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

int run_launch(const Arguments& arguments, std::ostream& err) {
  launch::LocalOptions options{.ranks = *arguments.ranks, .command = arguments.command, .log_dir = arguments.log_dir};
  options.grace = std::chrono::milliseconds(static_cast<int64_t>(arguments.grace * 1000));
  const auto own = own_commands();
  const auto& program = arguments.command.front();
  const bool is_own = std::find(own.begin(), own.end(), program) != own.end();
  if (is_own) {
    options.command.insert(options.command.begin(), "/proc/self/exe");
  } else {
    options.variables.emplace_back("PYTHONUNBUFFERED",
                                   "1");  // its lines pass through a pipe, and would come at its end
  }
  try {
    return launch::run_local(options);
  } catch (const ConfigError& error) {
    err << "tessera: " << base::message_of(error) << (is_own ? "" : base::did_you_mean(program, own)) << std::endl;
    return kUsage;
  }
}

int run_generate(const Arguments& arguments, std::ostream& out) {
  arguments.generate.verify();
  const auto model = train::load_run(arguments.run);
  out << arguments.prompt << std::flush;
  train::generate_text(model, arguments.prompt, arguments.generate,
                       [&](std::string_view part) { out << part << std::flush; });
  out << std::endl;
  return 0;
}

int run_command(const std::string& command, const Arguments& arguments, std::ostream& out, std::ostream& err) {
  return command == "train"      ? run_train(arguments, out)
         : command == "launch"   ? run_launch(arguments, err)
         : command == "compare"  ? run_compare(arguments, out)
         : command == "plan"     ? run_plan(arguments, out)
         : command == "explain"  ? run_explain(arguments, out)
         : command == "generate" ? run_generate(arguments, out)
         : command == "trace"    ? (out << trace::parting_text(trace::read_flights(arguments.flights)), 0)
                                 : (out << info_text(), 0);
}

}  // namespace

int run(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  Arguments arguments;
  const auto app = make_app(arguments);
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app->exit(error, out, err) == 0 ? 0 : kUsage;
  }
  const StopOnSignal stop;
  try {
    return run_command(app->get_subcommands().front()->get_name(), arguments, out, err);
  } catch (const Stopped&) {
    err << "tessera: stopped" << std::endl;
    return kStopped;
  } catch (...) {
    err << "tessera: " << base::message_of(std::current_exception()) << std::endl;
    return kFailed;
  }
}

std::string flag_list() {
  Arguments arguments;
  const auto app = make_app(arguments);
  std::string text;
  for (const auto* command : app->get_subcommands({})) {
    text += command->get_name() + ":";
    for (const auto* option : command->get_options()) {
      text += " " + option->get_name();
    }
    text += "\n";
  }
  return text;
}

}  // namespace tessera::cli
