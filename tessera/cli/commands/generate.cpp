#include <CLI/CLI.hpp>

#include "tessera/cli/command.h"
#include "tessera/train/run/run_folder.h"

namespace tessera::cli {
namespace {

struct GenerateArguments {
  std::string run, prompt;
  train::GenerateOptions generate;
};

int run_generate(const GenerateArguments& arguments, std::ostream& out) {
  arguments.generate.verify();
  const auto model = train::load_run(arguments.run);
  out << arguments.prompt << std::flush;
  train::generate_text(model, arguments.prompt, arguments.generate,
                       [&](std::string_view part) { out << part << std::flush; });
  out << std::endl;
  return 0;
}

}  // namespace

Command add_generate(CLI::App& program) {
  const auto arguments = std::make_shared<GenerateArguments>();
  auto& generate = arguments->generate;
  auto* app = program.add_subcommand("generate", "continue a text with a trained model");
  app->add_option("run", arguments->run, "folder of `tessera train --out`, or a model.safetensors in one")->required();
  app->add_option("--prompt", arguments->prompt, "the text to continue")->required();
  app->add_option("--max-tokens", generate.max_tokens, "stop after so many, 200 if not given");
  app->add_option("--temperature", generate.temperature, "0.8 if not given; 0: always the likeliest token");
  app->add_option("--top-k", generate.top_k, "only among the k likeliest tokens; 0: all");
  app->add_option("--top-p", generate.top_p, "only among the likeliest tokens of this probability together");
  app->add_option("--seed", generate.seed, "of the draws, 0 if not given");
  return {app, [arguments](std::ostream& out, std::ostream&) { return run_generate(*arguments, out); }};
}

}  // namespace tessera::cli
