#include "tests/launch/process_ranks.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::launch {
namespace {

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return ntohs(address.sin_port);
}

}  // namespace

ProcessRanks::ProcessRanks(int64_t size, const std::string& body, const Variables& variables)
    : port_(free_port()), processes_(size, -1), ends_(size) {
  auto pattern = (std::filesystem::temp_directory_path() / "tessera_ranks_XXXXXX").string();
  folder_ = ::mkdtemp(pattern.data());
  for (int64_t rank = 0; rank < size; ++rank) {
    Variables all = {{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(size)},
                     {"LOCAL_WORLD_SIZE", std::to_string(size)},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", std::to_string(port_)},
                     {"TESSERA_TEST_OUT", folder_.string()}};
    all.insert(all.end(), variables.begin(), variables.end());
    start(rank, body, std::move(all));
  }
}

ProcessRanks::~ProcessRanks() {
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    if (ends_[rank].code < 0) {
      ::kill(processes_[rank], SIGKILL);
      ::waitpid(processes_[rank], nullptr, 0);
    }
  }
  std::filesystem::remove_all(folder_);
}

void ProcessRanks::start(int64_t rank, const std::string& body, Variables variables) {
  const auto errors = (folder_ / ("err_" + std::to_string(rank))).string();
  const pid_t process = ::fork();
  if (process == 0) {
    const int file = ::open(errors.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(file, 1);
    ::dup2(file, 2);
    for (const auto& [name, value] : variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    ::execl("/proc/self/exe", "ranks", "--body", body.c_str(), nullptr);
    ::_exit(127);
  }
  processes_[static_cast<size_t>(rank)] = process;
}

void ProcessRanks::signal(int64_t rank, int number) const { ::kill(processes_[static_cast<size_t>(rank)], number); }

bool ProcessRanks::wait_for(const std::string& text) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (size_t rank = 0; rank < processes_.size();) {
    if (output(static_cast<int64_t>(rank)).find(text) != std::string::npos) {
      ++rank;
    } else if (std::chrono::steady_clock::now() > end) {
      return false;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return true;
}

bool ProcessRanks::wait(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    bool is_any_left = false;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (ends_[rank].code < 0 && ::waitpid(processes_[rank], &status, WNOHANG) == processes_[rank]) {
        ends_[rank] = {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
                       std::chrono::steady_clock::now()};
      }
      is_any_left |= ends_[rank].code < 0;
    }
    if (!is_any_left) {
      return true;
    }
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::chrono::milliseconds ProcessRanks::ended_after(int64_t rank, std::chrono::steady_clock::time_point moment) const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(ends_[static_cast<size_t>(rank)].when - moment);
}

std::string ProcessRanks::text_of(const std::string& kind, int64_t rank) const {
  std::ifstream file(folder_ / (kind + std::to_string(rank)));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace tessera::launch
