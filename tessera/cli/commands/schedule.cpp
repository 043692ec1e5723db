#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/base/text.h"
#include "tessera/cli/checks.h"
#include "tessera/cli/verbs.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/passes.h"
#include "tessera/schedule/picture.h"
#include "tessera/schedule/replay.h"
#include "tessera/schedule/verify.h"

namespace tessera::cli {
namespace {

using schedule::Schedule;

struct ScheduleArguments {
  std::string name, costs, svg, trace;
  int64_t stages = 0, micro_batches = 0, chunks = 0, barriers = 0, buffers = 2;
  std::optional<double> peak;
  bool is_csv = false, has_communication = false, has_waits = false, is_json = false;
};

Schedule read_schedule(const ScheduleArguments& arguments, const std::string& text) {
  TESSERA_CHECK_AS(ConfigError, arguments.stages == 0 && arguments.micro_batches == 0 && arguments.chunks == 0,
                   "[schedule] the sizes of ", arguments.name,
                   " are those of its rows; accepted: no --stages, --microbatches or --chunks beside a file");
  return schedule::parse_csv(text, arguments.barriers == 0 ? 1 : arguments.barriers);
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const auto& family : schedule::families()) {
    names.emplace_back(family.name);
  }
  return names;
}

Schedule schedule_of(const ScheduleArguments& arguments) {
  const auto names = schedule_names();
  Schedule made;
  if (std::find(names.begin(), names.end(), arguments.name) == names.end()) {
    const auto text = base::try_read_file(arguments.name);
    TESSERA_CHECK_AS(ConfigError, text, "[schedule] there is no schedule and no file \"", arguments.name,
                     "\"; accepted: a file of rows, or ", base::join(names, ", "),
                     base::did_you_mean(arguments.name, names));
    made = read_schedule(arguments, *text);
  } else {
    made = schedule::make_schedule(arguments.name,
                                   {.ranks = arguments.stages == 0 ? 4 : arguments.stages,
                                    .micro_batches = arguments.micro_batches == 0 ? 8 : arguments.micro_batches,
                                    .per_rank = arguments.chunks,
                                    .barriers = arguments.barriers});
  }
  const bool adds_communication = (arguments.has_communication || arguments.has_waits) && !made.has_communication();
  return adds_communication ? schedule::add_communication(made) : made;
}

std::string size_text(const Schedule& made) {
  return c10::str(made.micro_batches, " micro-batches through ", made.num_stages(), " stages on ", made.num_ranks(),
                  " ranks");
}

void write_file(const std::string& path, const std::string& content) {
  base::AtomicFile file(path);
  file.write(content);
  file.commit();
}

int show_schedule(const ScheduleArguments& arguments, std::ostream& out) {
  const auto made = schedule_of(arguments);
  if (arguments.is_csv) {
    out << (arguments.has_waits ? schedule::to_csv_with_waits(made) : schedule::to_csv(made));
    return 0;
  }
  const auto replay = schedule::replay_schedule(made, schedule::parse_costs(arguments.costs));
  if (!arguments.svg.empty()) {
    write_file(arguments.svg, schedule::to_svg(made, replay));
  }
  if (!arguments.trace.empty()) {
    write_file(arguments.trace, schedule::to_chrome_trace(made, replay));
  }
  out << arguments.name << ": " << size_text(made) << ", " << replay.makespan << " long, "
      << c10::str(std::round(replay.idle() * 1000) / 10) << "% idle\n"
      << schedule::to_text(made, replay);
  return 0;
}

int verify_schedule_of(const ScheduleArguments& arguments, std::ostream& out) {
  const auto made = schedule_of(arguments);
  const schedule::VerifyOptions options{.buffers = arguments.buffers, .peak = arguments.peak};
  schedule::verify_schedule(made, options);
  if (!made.has_communication()) {
    schedule::verify_schedule(schedule::add_communication(made), options);
  }
  const auto peaks = schedule::peaks_of(made);
  out << arguments.name << ": " << size_text(made) << ", every gradient once; ranks come to an end with "
      << arguments.buffers << " buffers and hold at most " << *std::max_element(peaks.begin(), peaks.end())
      << " micro-batches\n";
  return 0;
}

int replay_schedule_of(const ScheduleArguments& arguments, std::ostream& out) {
  const auto made = schedule_of(arguments);
  const auto replay = schedule::replay_schedule(made, schedule::parse_costs(arguments.costs));
  const auto peaks = schedule::peaks_of(made);
  auto ranks = nlohmann::ordered_json::array();
  for (int64_t rank = 0; rank < made.num_ranks(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    ranks.push_back({{"rank", rank},
                     {"busy", replay.busy[index]},
                     {"idle_in_window", replay.idle_in_window(rank)},
                     {"peak", peaks[index]}});
  }
  if (arguments.is_json) {
    out << nlohmann::ordered_json{{"makespan", replay.makespan}, {"idle", replay.idle()}, {"ranks", ranks}}.dump(2)
        << "\n";
    return 0;
  }
  char idle[32];
  std::snprintf(idle, sizeof(idle), "%.4f", replay.idle());
  out << arguments.name << ": " << size_text(made) << "\nmakespan " << replay.makespan << ", idle " << idle
      << "\nrank  busy  idle in its window  peak\n";
  for (const auto& row : ranks) {
    char line[96];
    std::snprintf(line, sizeof(line), "%4d %5g %19g %5g\n", row["rank"].get<int>(), row["busy"].get<double>(),
                  row["idle_in_window"].get<double>(), row["peak"].get<double>());
    out << line;
  }
  return 0;
}

std::vector<Verb<ScheduleArguments>> add_schedule_verbs(CLI::App& app, ScheduleArguments& arguments) {
  std::vector<Verb<ScheduleArguments>> verbs;
  const auto add = [&](const char* name, const char* what, int (*run)(const ScheduleArguments&, std::ostream&)) {
    auto* verb = app.add_subcommand(name, what);
    verbs.push_back({verb, run});
    verb->add_option(
            "name", arguments.name,
            base::join(schedule_names(), ", ") + "; or a file of rows as torch.distributed.pipelining has them")
        ->required();
    verb->add_option("--stages", arguments.stages, "ranks of the pipeline, pp; 4 if not given")->check(at_least(1));
    verb->add_option("--microbatches", arguments.micro_batches, "8 if not given")->check(at_least(1));
    verb->add_option("--chunks", arguments.chunks, "stages on each rank, of interleaved; 2 if not given")
        ->check(at_least(1));
    verb->add_option("--vocabulary", arguments.barriers,
                     "cut embedding and head over the ranks, with 1 or 2 barriers: of 1f1b and v-half")
        ->check(CLI::IsMember({1, 2}));
    return verb;
  };
  const auto add_costs = [&](CLI::App* verb) {
    verb->add_option("--costs", arguments.costs,
                     "F=1,B=1,W=1,send=0,S=0,T=0,E=0: forward, input and weight half of backward of a rank's share, a "
                     "message; a rank's part of the head, forward and backward, and of the embedding");
  };

  auto* verb = add("show", "draw a schedule in time", show_schedule);
  add_costs(verb);
  verb->add_option("--svg", arguments.svg, "also write the picture to this file");
  verb->add_option("--trace", arguments.trace, "also write a trace for chrome://tracing and Perfetto to this file");
  verb->add_flag("--csv", arguments.is_csv, "print the actions instead, a row for each rank");
  verb->add_flag("--communication", arguments.has_communication, "with sends and receives");
  verb->add_flag("--waits", arguments.has_waits,
                 "with these and the waits for sends that PyTorch 2.15 and later expects");

  verb = add("verify", "whether a schedule can run, and gives every gradient once", verify_schedule_of);
  verb->add_option("--buffers", arguments.buffers, "messages that one rank may have sent and another not taken")
      ->check(at_least(1))
      ->capture_default_str();
  verb->add_option("--peak", arguments.peak, "the most micro-batches that a rank may hold");

  verb = add("replay", "how long it takes and what each rank holds, if passes took what they are said to",
             replay_schedule_of);
  add_costs(verb);
  verb->add_flag("--json", arguments.is_json, "print one JSON object");
  return verbs;
}

}  // namespace

Command add_schedule(CLI::App& program) {
  const auto arguments = std::make_shared<ScheduleArguments>();
  auto* app = program.add_subcommand("schedule", "look at schedules of pipelines");
  return command_of(app, arguments, add_schedule_verbs(*app, *arguments));
}

}  // namespace tessera::cli
