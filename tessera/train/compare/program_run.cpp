#include "tessera/train/compare/program_run.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/base/text.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/comm/core/stop.h"

namespace tessera::train {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;
namespace fs = std::filesystem;

constexpr size_t kMostTold = 1500;  // characters of what a failed program printed

// A folder of its own, gone with it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tessera_compare_XXXXXX").string();
    TESSERA_CHECK_AS(DataError, mkdtemp(name.data()), "[compare] cannot make a folder ", name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name = "") const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size())) {
    text.replace(at, word.size(), by);
  }
  return text;
}

std::vector<std::string> command_on(const ProgramOptions& options, const layout::Mesh& mesh) {
  std::vector<std::string> command;
  const auto ranks = std::to_string(mesh.size());
  if (options.as_processes) {
    command = {"/proc/self/exe", "launch", "-n", ranks, "--"};
  }
  for (const auto& argument : options.command) {
    command.push_back(replaced(replaced(argument, "{mesh}", mesh.str()), "{ranks}", ranks));
  }
  return command;
}

// Becomes the command. What cannot be said by an exit code is said on stderr.
[[noreturn]] void become(const std::vector<std::string>& command, const Variables& variables,
                         const std::string& output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, SIG_DFL);
  }
  for (const auto& [name, value] : variables) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO), dup2(file, STDOUT_FILENO), dup2(file, STDERR_FILENO);
  std::vector<char*> words;
  for (const auto& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  execvp(words[0], words.data());
  perror(words[0]);
  std::_Exit(127);
}

// The exit code; 128 + its number for a signal.
int wait_for(pid_t child) {
  const auto stops = comm::stop_requests();
  for (int status = 0;; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    try {
      comm::throw_if_stopped_since(stops);
    } catch (...) {
      kill(child, SIGTERM);
      waitpid(child, &status, 0);
      throw;
    }
  }
}

int run_command(const std::vector<std::string>& command, const Variables& variables, const std::string& output) {
  const pid_t child = fork();
  TESSERA_CHECK_AS(ConfigError, child >= 0, "[compare] cannot start ", command.front());
  if (child == 0) {
    become(command, variables, output);
  }
  const int code = wait_for(child);
  TESSERA_CHECK_AS(ConfigError, code != 127, "[compare] cannot start ", command.front(), ": ",
                   base::trim(base::try_read_file(output).value_or("")));
  return code;
}

// Runs it in this folder, with these variables besides those of every run.
int run_in(const Folder& folder, const ProgramOptions& options, const layout::Mesh& mesh, const Variables& more) {
  using comm::ComparedRun;
  Variables variables = {{ComparedRun::kMesh, mesh.str()},
                         {ComparedRun::kFolder, folder.path()},
                         {ComparedRun::kSteps, std::to_string(options.steps)},
                         {"PYTHONUNBUFFERED", "1"}};
  if (options.is_exact) {
    variables.emplace_back(ComparedRun::kNumerics, *options.is_exact ? "exact" : "fast");
  }
  variables.insert(variables.end(), more.begin(), more.end());
  return run_command(command_on(options, mesh), variables, folder.path("output"));
}

std::vector<watch::RecordedStep> steps_of(const std::string& path) {
  std::vector<watch::RecordedStep> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) {
      break;  // a line that was cut short
    }
    steps.push_back(watch::RecordedStep::parse(line));
  }
  return steps;
}

// The steps that all ranks have.
std::vector<watch::RecordedStep> read_steps(const Folder& folder, int64_t ranks) {
  auto all = steps_of(watch::steps_path(folder.path(), 0));
  for (int64_t rank = 1; rank < ranks; ++rank) {
    const auto part = steps_of(watch::steps_path(folder.path(), rank));
    all.resize(std::min(all.size(), part.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].add(part[i]);
    }
  }
  return all;
}

std::string output_tail(const Folder& folder) {
  const auto output = base::try_read_file(folder.path("output")).value_or("");
  const std::string text(base::trim(output));
  return text.size() <= kMostTold ? text : "..." + text.substr(text.size() - kMostTold);
}

std::string failure_of(const Folder& folder, const ProgramRun& run, int code, int64_t steps) {
  if (code != 0 && run.count() < steps) {
    return c10::str("the program failed (exit code ", code, ") after ", run.count(),
                    " recorded steps; its last output:\n", output_tail(folder));
  }
  if (run.count() > 0) {
    return "";
  }
  if (!run.steps.empty()) {
    return "the program ended without a training step: it placed a model, and ran no forward pass with gradients";
  }
  if (fs::exists(folder.path("ranks"))) {
    return "the program made ranks and took no mesh: no rank placed a model (parallelize, fully_shard), so that "
           "nothing was recorded";
  }
  return "the program never made ranks: it ended without a call of run_ranks, and no launcher had started it as one; "
         "accepted: a program that calls run_ranks, or --processes, which starts each rank as `tessera launch` does";
}

}  // namespace

bool is_program(const std::string& path) {
  return path.ends_with(".py") ||
         (!path.ends_with(".toml") && fs::is_regular_file(path) && access(path.c_str(), X_OK) == 0);
}

std::vector<std::string> command_of(const std::string& path, const std::vector<std::string>& arguments) {
  std::vector<std::string> command;
  if (path.ends_with(".py")) {
    TESSERA_CHECK_AS(ConfigError, fs::is_regular_file(path), "[compare] there is no file ", path);
    const char* python = std::getenv("TESSERA_PYTHON");
    command = {python && *python ? python : "python3", path};
  } else {
    command = {fs::absolute(path).string()};
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

ProgramRun run_program(const ProgramOptions& options, const std::string& mesh) {
  return fetch_value(options, mesh, 0, "").run;
}

FetchedValue fetch_value(const ProgramOptions& options, const std::string& mesh, int64_t step, const std::string& key) {
  using comm::ComparedRun;
  const Folder folder;
  const auto parsed = layout::Mesh::parse(mesh);
  const int code =
      run_in(folder, options, parsed, {{ComparedRun::kWantedStep, std::to_string(step)}, {ComparedRun::kWanted, key}});
  FetchedValue result{{mesh, read_steps(folder, parsed.size()), ""}, {}};
  result.run.failure = failure_of(folder, result.run, code, options.steps);
  for (int64_t rank = 0; rank < parsed.size(); ++rank) {
    if (const auto path = watch::value_path(folder.path(), rank); fs::exists(path)) {
      result.value.add(watch::StepValue::read(path));
    }
  }
  return result;
}

}  // namespace tessera::train
