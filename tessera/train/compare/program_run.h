// Runs a program of a user's own on a mesh, and reads what its ranks record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/watch/step_record.h"

namespace tessera::train {

struct ProgramOptions {
  // The program and its arguments, in which `{mesh}` and `{ranks}` are the run's.
  std::vector<std::string> command;
  int64_t steps = 20;
  std::optional<bool> is_exact = {};  // numerics, instead of the program's
  bool as_processes = false;          // each rank a process, as by `tessera launch`
};

// One run of it.
struct ProgramRun {
  std::string mesh;
  std::vector<watch::RecordedStep> steps;  // of all ranks together; the first is step 0, before the first
  std::string failure;                     // why there is nothing to compare, or not all; empty: there is

  // Recorded, without step 0.
  int64_t count() const { return steps.empty() ? 0 : static_cast<int64_t>(steps.size()) - 1; }
};

// A program for compare, by its name: `train.py` is run by Python (TESSERA_PYTHON, else python3), a file that may be
// executed by itself. False for a configuration.
bool is_program(const std::string& path);
std::vector<std::string> command_of(const std::string& path, const std::vector<std::string>& arguments);

// Starts the program once, with the mesh in place of its own (comm::ComparedRun), and waits for its end. It ends by
// itself after `steps` steps. What it prints is kept for `failure`. Throws ConfigError if it cannot be started, Stopped
// when this process is asked to stop.
ProgramRun run_program(const ProgramOptions& options, const std::string& mesh);

// The same, and one value of one step, element by element: without any if it is not there.
struct FetchedValue {
  ProgramRun run;
  watch::StepValue value;
};
FetchedValue fetch_value(const ProgramOptions& options, const std::string& mesh, int64_t step, const std::string& key);

}  // namespace tessera::train
