#include "tessera/launch/local.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/store.h"

extern char** environ;

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;

// What shells add to the number of the signal that ended a process.
constexpr int kSignalled = 128;

volatile std::sig_atomic_t signals_seen = 0, last_signal = 0;

// Notes signals while it lives.
class SignalNotes {
 public:
  SignalNotes() {
    signals_seen = 0;
    struct sigaction action{};
    action.sa_handler = [](int signal) {
      last_signal = signal;
      signals_seen = signals_seen + 1;
    };
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &action, &before_[i]);
    }
  }
  ~SignalNotes() {
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  SignalNotes(const SignalNotes&) = delete;
  SignalNotes& operator=(const SignalNotes&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[std::size(kSignals)];
};

// One of a rank's two outputs, line by line.
struct Output {
  int pipe = -1;
  std::string unfinished;
  std::ostream* to = nullptr;  // null: not shown
};

struct Rank {
  int64_t number = 0;
  pid_t process = -1;
  Output outputs[2];
  std::ofstream log;
  bool is_running = false;
};

void show(Rank& rank, Output& output, const std::string& line) {
  if (output.to) {
    *output.to << "[" + std::to_string(rank.number) + "] " + line + "\n" << std::flush;
  }
  if (rank.log.is_open()) {
    rank.log << line << std::endl;
  }
}

// Reads what is there; shows whole lines. Closes at the end.
void read_output(Rank& rank, Output& output) {
  char buffer[65536];
  const auto count = ::read(output.pipe, buffer, sizeof buffer);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
    return;
  }
  output.unfinished.append(buffer, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  size_t begin = 0;
  for (size_t end; (end = output.unfinished.find('\n', begin)) != std::string::npos; begin = end + 1) {
    show(rank, output, output.unfinished.substr(begin, end - begin));
  }
  output.unfinished.erase(0, begin);
  if (count <= 0) {
    if (!output.unfinished.empty()) {
      show(rank, output, output.unfinished);
    }
    ::close(output.pipe);
    output.pipe = -1;
  }
}

// The environment of one rank, as NAME=value.
std::vector<std::string> variables_of(const LocalOptions& options, int64_t rank, int port, const std::string& run) {
  std::vector<std::pair<std::string, std::string>> own = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"GROUP_RANK", "0"},
      {"WORLD_SIZE", std::to_string(options.ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_RUN_ID", run},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
  };
  if (!options.log_dir.empty()) {
    own.emplace_back("LOG_RANK", "all");
    own.emplace_back("TESSERA_LOG_DIR", std::filesystem::absolute(options.log_dir).string());
  }
  own.insert(own.end(), options.variables.begin(), options.variables.end());
  std::vector<std::string> all;
  for (const auto& [name, value] : own) {
    all.push_back(name + "=" + value);
  }
  for (char** each = environ; *each; ++each) {
    const std::string text = *each, name = text.substr(0, text.find('='));
    if (std::none_of(own.begin(), own.end(), [&](const auto& pair) { return pair.first == name; })) {
      all.push_back(text);
    }
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

// In the child, between fork and exec: only what is async-signal-safe. Reports errno to `failure`.
[[noreturn]] void become(char** command, char** variables, const int outputs[2], int failure, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);
  }
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, 0);
  ::dup2(outputs[0], 1);
  ::dup2(outputs[1], 2);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::signal(signal, SIG_DFL);
  }
  ::execvpe(command[0], command, variables);
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(failure, &error, sizeof error);
  ::_exit(127);
}

void start(Rank& rank, const LocalOptions& options, int port, const std::string& run) {
  auto command = options.command, variables = variables_of(options, rank.number, port, run);
  const auto command_pointers = pointers_to(command), variable_pointers = pointers_to(variables);
  int pipes[3][2];
  for (auto& ends : pipes) {
    TESSERA_CHECK_AS(CommError, ::pipe2(ends, O_CLOEXEC) == 0, "[launch] no pipe: ", std::strerror(errno));
  }
  const int outputs[2] = {pipes[0][1], pipes[1][1]};
  const pid_t parent = ::getpid();
  rank.process = ::fork();
  TESSERA_CHECK_AS(CommError, rank.process >= 0, "[launch] no process for rank ", rank.number, ": ",
                   std::strerror(errno));
  if (rank.process == 0) {
    become(const_cast<char**>(command_pointers.data()), const_cast<char**>(variable_pointers.data()), outputs,
           pipes[2][1], parent);
  }
  rank.is_running = true;
  for (auto& ends : pipes) {
    ::close(ends[1]);
  }
  rank.outputs[0].pipe = pipes[0][0];
  rank.outputs[1].pipe = pipes[1][0];
  int error = 0;
  const bool has_failed = ::read(pipes[2][0], &error, sizeof error) == sizeof error;
  ::close(pipes[2][0]);
  TESSERA_CHECK_AS(ConfigError, !has_failed, "[launch] cannot start ", options.command[0], ": ", std::strerror(error),
                   "; accepted: a program on PATH, or the path of one");
}

// Ranks, from their start to their end.
class Ranks {
 public:
  explicit Ranks(const LocalOptions& options) : options_(options), ranks_(static_cast<size_t>(options.ranks)) {
    for (int64_t i = 0; i < options.ranks; ++i) {
      auto& rank = ranks_[static_cast<size_t>(i)];
      rank.number = i;
      rank.outputs[0].to = prints(i) ? &std::cout : nullptr;
      rank.outputs[1].to = &std::cerr;
      if (!options.log_dir.empty()) {
        const auto path = std::filesystem::path(options.log_dir) / ("rank_" + std::to_string(i) + ".log");
        rank.log.open(path);
        TESSERA_CHECK_AS(ConfigError, rank.log, "[launch] cannot write ", path,
                         "; accepted: a folder that may be written to");
      }
    }
  }
  ~Ranks() {
    signal_all(SIGKILL);
    for (auto& rank : ranks_) {
      if (rank.is_running) {
        ::waitpid(rank.process, nullptr, 0);
      }
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int run() {
    std::random_device random;
    const auto name = std::to_string(::getpid()) + "-" + std::to_string(random());
    for (auto& rank : ranks_) {
      start(rank, options_, store_.port(), name);
    }
    store_.serve();
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.is_running; })) {
      read_outputs(std::chrono::milliseconds(20));
      forward_signals();
      for (auto& rank : ranks_) {
        collect(rank);
      }
      press();
    }
    for (auto& rank : ranks_) {
      ::kill(-rank.process, SIGKILL);  // what it may have started itself
    }
    while (read_outputs(std::chrono::milliseconds(0))) {
    }
    return code_;
  }

 private:
  void signal_all(int signal) {
    for (const auto& rank : ranks_) {
      if (rank.is_running) {
        ::kill(-rank.process, signal);
      }
    }
  }

  // Whether there was anything to read.
  bool read_outputs(std::chrono::milliseconds wait) {
    std::vector<pollfd> wanted;
    std::vector<std::pair<Rank*, Output*>> whose;
    for (auto& rank : ranks_) {
      for (auto& output : rank.outputs) {
        if (output.pipe >= 0) {
          wanted.push_back({output.pipe, POLLIN, 0});
          whose.emplace_back(&rank, &output);
        }
      }
    }
    const bool is_any = ::poll(wanted.data(), wanted.size(), static_cast<int>(wait.count())) > 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].revents) {
        read_output(*whose[i].first, *whose[i].second);
      }
    }
    return is_any;
  }

  void forward_signals() {
    for (; forwarded_ < signals_seen; ++forwarded_) {
      signal_all(forwarded_ == 0 ? last_signal : SIGKILL);
      is_stopped_ |= code_ == 0;
      ending_since_ = ending_since_.value_or(Clock::now());
    }
  }

  void collect(Rank& rank) {
    int status = 0;
    if (!rank.is_running || ::waitpid(rank.process, &status, WNOHANG) != rank.process) {
      return;
    }
    rank.is_running = false;
    const int code = WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
    if (code == 0) {
      return;
    }
    if (WIFSIGNALED(status) && (!ending_since_ || code_ == 0)) {
      std::cerr << c10::str("tessera launch: rank ", rank.number, " (pid ", rank.process, ") was ended by signal ",
                            WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")\n")
                << std::flush;
    }
    const bool is_news = code_ == 0 || (is_stopped_ && code_ < kSignalled && code >= kSignalled);
    code_ = is_news ? code : code_;
    ending_since_ = ending_since_.value_or(Clock::now());
  }

  // Hurries those that stay.
  void press() {
    if (!ending_since_ || Clock::now() < *ending_since_ + options_.grace * (1 + pressed_) || pressed_ > 1) {
      return;
    }
    code_ = code_ == 0 && is_stopped_ ? kSignalled + last_signal : code_;
    signal_all(pressed_++ == 0 ? SIGTERM : SIGKILL);
  }

  const LocalOptions& options_;
  LocalStore store_;
  std::vector<Rank> ranks_;
  int code_ = 0;
  bool is_stopped_ = false;  // by a signal, before any rank had failed
  int forwarded_ = 0, pressed_ = 0;
  std::optional<Clock::time_point> ending_since_;
};

}  // namespace

int run_local(const LocalOptions& options) {
  TESSERA_CHECK_AS(ConfigError, options.ranks >= 1 && options.ranks <= 1024, "[launch] ", options.ranks,
                   " processes on one machine; accepted: 1 to 1024");
  TESSERA_CHECK_AS(ConfigError, !options.command.empty(),
                   "[launch] nothing to start; accepted: a program and its arguments");
  if (!options.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.log_dir, error);
    TESSERA_CHECK_AS(ConfigError, !error, "[launch] cannot make the folder \"", options.log_dir,
                     "\": ", error.message());
  }
  const SignalNotes notes;
  return Ranks(options).run();
}

}  // namespace tessera::launch
