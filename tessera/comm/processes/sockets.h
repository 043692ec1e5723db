// TCP between the processes of a job: an owner of sockets, framed messages, and what processes and machines are called.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::comm {

// Owns one socket, or none. One thread may send while another receives.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close();

  // Sends one message, framed by its length. Blocks for a second at most; does not throw.
  bool send(const std::string& message) const;

  // The next message, of 4096 bytes at most; empty if it is not here within a second.
  std::string receive() const;

  enum class Heard { kNothing, kBytes, kEnd };
  // Whether bytes wait, or the other end is closed and nothing of it is left to read. Takes nothing, does not wait.
  Heard listen() const;

  // This end's IPv4 address and port.
  std::pair<std::string, int> address() const;

 private:
  int descriptor_ = -1;
};

// Listens on a free port of every interface. Throws CommError.
Socket listen_anywhere(int64_t backlog);

// The next connection that came to `listening` within `limit`; none if there is none.
Socket accept_within(const Socket& listening, std::chrono::milliseconds limit);

// A connection; none if there is none within `limit`.
Socket connect_within(const std::string& address, int port, std::chrono::milliseconds limit);

// A number that nobody guesses.
uint64_t random_token();

// `pid 1234 on host`.
std::string process_name();

// The same for processes that share loopback: a container, or another network namespace, is a machine of its own.
std::string machine_name();

// IPv4 addresses under which other machines may reach this one.
std::vector<std::string> own_addresses();

}  // namespace tessera::comm
